"""Models of other libraries: they come in as run folders, and ours go out. Read in this order:

binary                 numbers and bytes of files, with every size checked
coders                 how other people's files turn text into ids
characters             a vocabulary of single characters
charsmap               SentencePiece's rules for characters
sentencepiece          SentencePiece's models
subword_nmt            fairseq's dictionaries and subwords
tokenizers             other people's tokenizers, with the ids that they give
imported               what every reader returns: a configuration, weights by our names, a tokenizer
template_sandbox       Jinja with bounds on time and memory
chat_template          how a chat model wants its messages laid out
names                  reversible tables of weight names, one for each family
pickled                files of torch, without executing them
huggingface_config     the options of a config.json of the Hugging Face hub
huggingface_tokenizer  its tokenizers, special tokens and chat templates
huggingface            folders of the hub
marian                 the translators of Firefox
fairseq                fairseq's Transformers
gguf_file              the files of llama.cpp
llama2c                the files of llama2.c
nanogpt                the checkpoints of nanoGPT
certificate            our numbers beside those of the other library
hub                    models of the hub by their names
import_model           `limelight import`: a source becomes a run folder
known_models           models known by name: where they are, how large, under which licence
huggingface_export     folders of the hub, written by the same tables
ctranslate2_export     folders of CTranslate2
gguf_export            files of llama.cpp
onnx_export            graphs for onnxruntime
model_card             README.md of an export: data, scores, licence
export_model           `limelight export`: a run becomes a model of another library

Everything is data: nothing that comes with a model is executed, and sizes are checked first.
"""
