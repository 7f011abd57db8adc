"""Models that other people published: they come in as run folders. Read in this order:

coders                 how other people's files turn text into ids
tokenizers             other people's tokenizers, with the ids that they give
imported               what every reader returns: a configuration, weights by our names, a tokenizer
chat_template          how a chat model wants its messages laid out
names                  reversible tables of weight names, one for each family
huggingface_config     the options of a config.json of the Hugging Face hub
huggingface_tokenizer  its tokenizers, special tokens and chat templates
huggingface            folders of the hub
certificate            our numbers beside those of the origin's own library
hub                    models of the hub by their names
import_model           `limelight import`: a source becomes a run folder
known_models           models known by name: where they are, how large, under which licence

Everything is data: nothing that comes with a model is executed, and sizes are checked first.
"""
