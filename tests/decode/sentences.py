"""Everyday sentences with their translations: 500 pairs of 25 subjects and 20 ways to go on."""

SUBJECTS = {
    "Tom": "Tom",
    "Mary": "Maria",
    "My father": "Mein Vater",
    "My mother": "Meine Mutter",
    "My brother": "Mein Bruder",
    "My sister": "Meine Schwester",
    "Our teacher": "Unser Lehrer",
    "Our neighbour": "Unser Nachbar",
    "Your friend": "Dein Freund",
    "His wife": "Seine Frau",
    "Her husband": "Ihr Mann",
    "The doctor": "Der Arzt",
    "The boy": "Der Junge",
    "The girl": "Das Mädchen",
    "The old man": "Der alte Mann",
    "The young woman": "Die junge Frau",
    "The child": "Das Kind",
    "The student": "Der Student",
    "The farmer": "Der Bauer",
    "The king": "Der König",
    "The stranger": "Der Fremde",
    "Nobody": "Niemand",
    "Somebody": "Jemand",
    "He": "Er",
    "She": "Sie",
}
REST = {
    "is sleeping.": "schläft.",
    "is reading a book.": "liest ein Buch.",
    "is waiting at the station.": "wartet am Bahnhof.",
    "is playing in the garden with a dog.": "spielt im Garten mit einem Hund.",
    "was very tired.": "war sehr müde.",
    "was late because of the snow.": "kam wegen des Schnees zu spät.",
    "bought a new car last week.": "hat letzte Woche ein neues Auto gekauft.",
    "lost the key.": "hat den Schlüssel verloren.",
    "has never been to Germany.": "war noch nie in Deutschland.",
    "has already eaten the cake.": "hat den Kuchen schon gegessen.",
    "will come tomorrow.": "wird morgen kommen.",
    "will help you if you ask.": "wird dir helfen, wenn du fragst.",
    "lives near the river.": "wohnt in der Nähe des Flusses.",
    "speaks three languages.": "spricht drei Sprachen.",
    "works in a big factory.": "arbeitet in einer großen Fabrik.",
    "knows what happened yesterday.": "weiß, was gestern passiert ist.",
    "wants to learn how to swim.": "will schwimmen lernen.",
    "cannot find the answer to this question.": "kann die Antwort auf diese Frage nicht finden.",
    "asked me where the bank was.": "fragte mich, wo die Bank ist.",
    "does not like coffee, but drinks a lot of tea.": "mag keinen Kaffee, trinkt aber viel Tee.",
}
PAIRS = [
    (f"{who} {does}", f"{wer} {macht}")
    for who, wer in SUBJECTS.items()
    for does, macht in REST.items()
]
