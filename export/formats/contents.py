"""What the files of a checkpoint and the settings in them mean: read, without effect, or refused.

It imports no heavy libraries, so that the command line refuses a wrong checkpoint at once.
"""
# ruff: noqa: SIM905

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, shown
from dragoman.files.text_lines import printable

from ..registry import FormatName

SHOWN, LONGEST_NAME = 5, 60
"""Maximum number of names in a note, and of characters of a name."""


@dataclass(frozen=True)
class KnownSettings:
    """The keys of a settings file. Any other key is unknown, which is worth a note."""

    read: frozenset[str]
    """Keys that determine the model, the tokenizer or the decoding."""
    harmless: frozenset[str] = frozenset()
    """Keys without effect on outputs, such as those of training."""
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys whose effect is not supported, with the values that switch them off; null and empty
    texts, lists and objects also do."""

    def unsupported(self, values: Mapping[str, Any]) -> list[str]:
        """Return a problem for each key in force that is not supported."""
        return [
            f"{name}: this setting is not supported, found {shown(values[name])}"
            for name, neutral in self.refused.items()
            if values.get(name) not in (None, "", [], {}, *neutral)
        ]

    def notes(
        self, file: str, values: Mapping[str, Any], others: frozenset[str] = frozenset()
    ) -> list[str]:
        """Return a note that names the keys of a file that are not known, if any."""
        known = self.read | self.harmless | self.refused.keys() | others
        unknown = [
            name for name, value in values.items() if value is not None and name not in known
        ]
        if not unknown:
            return []
        settings = "settings that are" if len(unknown) > 1 else "a setting that is"
        return [f"{file} has {settings} not known here and not read: {listed(unknown)}"]


def listed(names: Iterable[str]) -> str:
    """Return the first names of many, each shortened, as one line."""
    every = [printable(name)[:LONGEST_NAME] for name in names]
    return ", ".join(every[:SHOWN]) + (", ..." if len(every) > SHOWN else "")


WITHOUT_EFFECT = frozenset(
    {
        *"""
_name_or_path name_or_path _commit_hash transformers_version model_type torch_dtype dtype
use_bfloat16 _attn_implementation attn_implementation _attn_implementation_autoset
_attn_implementation_internal use_cache output_attentions output_hidden_states output_past
return_dict torchscript tf_legacy_loss chunk_size_feed_forward gradient_checkpointing is_decoder
is_encoder_decoder tie_encoder_decoder cross_attention_hidden_size finetuning_task
task_specific_params prefix _num_labels save_step
""".split(),
        # training
        *"""
dropout attention_dropout activation_dropout dropout_rate hidden_dropout hidden_dropout_prob
attention_probs_dropout_prob classifier_dropout classifier_dropout_prob classif_dropout
encoder_layerdrop decoder_layerdrop resid_pdrop embd_pdrop attn_pdrop seq_classif_dropout qa_dropout
init_std initializer_range initializer_factor sinusoidal_pos_embds apply_spec_augment mask_time_prob
mask_time_length mask_feature_prob mask_feature_length mask_time_min_masks mask_feature_min_masks
""".split(),
        # heads that are refused, or that other models have
        *"""
summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type
summary_use_proj classifier_proj_size use_weighted_layer_sum num_labels id2label label2id
problem_type
""".split(),
        # other names of sizes, which the weights show, and of heads, see HEADS
        *"""
num_hidden_layers hidden_size num_attention_heads num_key_value_heads
""".split(),
        # of older versions of transformers, and of conversions; none of them reads these now
        *"""
add_bias_logits add_final_layer_norm normalize_before normalize_embedding static_position_embeddings
extra_pos_embeddings do_blenderbot_90_layernorm n_ctx predict_special_tokens tie_weights_
directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
gap_size net_structure_type num_memory_blocks down_scale_factor layers_to_keep pooler_type
reorder_and_upcast_attn median_filter_width replacing_rate student_encoder_layers
student_decoder_layers vocab_hash mask_token
""".split(),
    }
)
"""KnownSettings of `config.json` without effect on what the supported families compute."""

HEADS = ("encoder_attention_heads", "num_heads", "n_head", "n_heads")
"""Names of families for `num_attention_heads`, which no weight shows."""

TOKENS = frozenset(
    """
bos_token_id eos_token_id pad_token_id decoder_start_token_id sep_token_id cls_token_id unk_token_id
mask_token_id forced_bos_token_id forced_eos_token_id force_bos_token_to_be_generated
""".split()
)
GENERATION = KnownSettings(
    read=TOKENS
    | {
        *"""
max_length max_new_tokens min_length min_new_tokens early_stopping num_beams length_penalty
num_return_sequences do_sample temperature top_k top_p min_p repetition_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids suppress_tokens begin_suppress_tokens forced_decoder_ids
""".split(),
        # Whisper
        *"""
is_multilingual lang_to_id task_to_id language task alignment_heads no_timestamps_token_id
max_initial_timestamp_index return_timestamps
""".split(),
        # values that switch them off are looked at by the families
        *"""
encoder_repetition_penalty sequence_bias exponential_decay_length_penalty guidance_scale
force_words_ids constraints watermarking_config stop_strings max_time token_healing is_assistant
penalty_alpha dola_layers top_h typical_p epsilon_cutoff eta_cutoff num_beam_groups
diversity_penalty renormalize_logits
""".split(),
    },
    harmless=frozenset(
        {
            *"""
_from_model_config transformers_version use_cache cache_implementation cache_config max_cache_len
prefill_chunk_size compile_config disable_compile continuous_batching_config low_memory use_mtp
output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
return_legacy_cache remove_invalid_values num_assistant_tokens num_assistant_tokens_schedule
speculation_type assistant_confidence_threshold assistant_early_exit assistant_lookbehind
assistant_ensemble_weight target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size
""".split(),
            # Whisper on long audio
            *"""
prev_sot_token_id no_speech_threshold logprob_threshold num_frames compression_ratio_threshold
condition_on_prev_tokens median_filter_width prompt_condition_type return_segments
return_token_timestamps
""".split(),
        }
    ),
)
"""The keys of `generation_config.json`, or of `config.json` in its place."""

CONFIG = KnownSettings(
    read=GENERATION.read
    | {"architectures", "tie_word_embeddings", "tokenizer_class", "auto_map"}
    | {"sentence_transformers", "sbert_ce_default_activation_function"},
    harmless=WITHOUT_EFFECT | GENERATION.harmless,
    refused={"quantization_config": (), "compression_config": (), "pruned_heads": ()},
)
"""The keys of `config.json` of all families of Hugging Face; a family reads others, too."""

TOKENIZER = KnownSettings(
    read=frozenset(
        """
tokenizer_class added_tokens_decoder additional_special_tokens extra_special_tokens model_max_length
do_lower_case lowercase strip_accents tokenize_chinese_chars add_prefix_space add_bos_token
add_eos_token separate_vocabs offset pat_str language task bos_token eos_token unk_token pad_token
cls_token sep_token mask_token split_special_tokens clean_up_tokenization_spaces legacy normalize
sp_model_kwargs keep_accents remove_space trim_offsets errors do_basic_tokenize never_split
extra_ids legacy_behaviour auto_map truncation_side
""".split()
    ),
    harmless=frozenset(
        """
name_or_path special_tokens_map_file tokenizer_file vocab_file padding_side model_input_names
max_length stride truncation_strategy pad_to_multiple_of pad_token_type_id max_len padding
truncation use_fast from_slow backend is_local processor_class chat_template response_schema
local_files_only src_lang tgt_lang source_lang target_lang language_codes num_madeup_words
mask_token_sent predict_timestamps return_attention_mask init_inputs full_tokenizer_file
tokenizer_type verbose device_map return_tensors max_source_length max_target_length
add_special_tokens wordpieces_prefix target_vocab_file vocab_size is_fast trust_remote_code
fix_mistral_regex subfolder _commit_hash model_type revision
""".split()
    ),
)
"""The keys of `tokenizer_config.json`."""

CTRANSLATE2 = KnownSettings(
    read=frozenset(
        """
bos_token eos_token unk_token decoder_start_token add_source_bos add_source_eos layer_norm_epsilon
multi_query_attention suppress_ids suppress_ids_begin alignment_heads lang_ids
""".split()
    ),
    harmless=frozenset({"quantization_type", "quantization_bits", "quantization_group_size"}),
)
"""The keys of CTranslate2's `config.json`, in which generation settings may stand, too."""


MARIAN = KnownSettings(
    read=frozenset(
        """
type dim-emb dim-vocabs enc-depth dec-depth dec-cell layer-normalization tied-embeddings
tied-embeddings-src tied-embeddings-all output-omit-bias transformer-heads transformer-dim-ffn
transformer-decoder-dim-ffn transformer-ffn-depth transformer-decoder-ffn-depth
transformer-ffn-activation transformer-preprocess transformer-postprocess
transformer-postprocess-emb transformer-postprocess-top transformer-decoder-autoreg
transformer-guided-alignment-layer
""".split()
    ),
    harmless=frozenset(
        """
version dim-rnn enc-cell enc-cell-depth enc-type skip best-deep dec-cell-base-depth
dec-cell-high-depth guided-alignment max-length transformer-dim-aan transformer-aan-depth
transformer-aan-activation transformer-aan-nogate transformer-depth-scaling factors-combine
bert-mask-symbol bert-sep-symbol bert-class-symbol bert-type-vocab-size bert-masking-fraction
bert-train-type-embeddings sharing ulr-trainable-transformation
""".split()
    ),
    refused={
        **dict.fromkeys(
            """
right-left ulr transformer-no-projection transformer-rnn-projection transformer-pool
transformer-train-position-embeddings transformer-train-positions transformer-no-bias
transformer-no-affine transformer-disable-position-embeddings transformer-alibi-trainable
""".split(),
            ("false",),
        ),
        **dict.fromkeys(("ulr-dim-emb", "lemma-dim-emb", "factors-dim-emb"), ("0",)),
        **dict.fromkeys(
            """
transformer-tied-layers lemma-dependency special-vocab input-types separator-symbol
transformer-attention-mask transformer-alibi-mask
""".split(),
            ([], ["sequence"], ["sequence", "sequence"]),
        ),
    },
)
"""The keys of Marian's `special:model.yml`; truth values and numbers are texts."""


FEATURES = KnownSettings(
    read=frozenset({"feature_size", "sampling_rate", "n_fft", "hop_length"}),
    harmless=frozenset(
        """
feature_extractor_type processor_class chunk_length n_samples nb_max_frames padding_side
padding_value return_attention_mask mel_filters auto_map
""".split()
    ),
    refused={"do_normalize": (False,), "dither": (0.0,)},
)
"""The keys of Whisper's features, in `preprocessor_config.json` or `processor_config.json`."""

SENTENCE_TRANSFORMERS = KnownSettings(
    read=frozenset(
        {"prompts", "default_prompt_name", "truncate_dim", "activation_fn", "model_type"}
    ),
    harmless=frozenset({"__version__", "similarity_fn_name", "keep_in_fp32_modules"}),
)
"""The keys of `config_sentence_transformers.json`."""

SENTENCE_BERT = KnownSettings(
    read=frozenset(
        {"max_seq_length", "do_lower_case", "transformer_task", "modality_config"}
        | {"module_output_name"}
    ),
    harmless=frozenset({"unpad_inputs"}),
    refused=dict.fromkeys(
        """
model_args model_kwargs config_args config_kwargs tokenizer_args processor_kwargs processing_kwargs
tokenizer_name_or_path query_length document_length query_expansion
""".split(),
        (),
    ),
)
"""The keys of `sentence_bert_config.json`, the settings of the module Transformer."""

POOLING = KnownSettings(
    read=frozenset(
        """
include_prompt embedding_dimension word_embedding_dimension pooling_mode pooling_mode_mean_tokens
pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_sqrt_len_tokens
pooling_mode_weightedmean_tokens pooling_mode_lasttoken
""".split()
    )
)
DENSE = KnownSettings(
    read=frozenset(
        {"in_features", "out_features", "bias", "activation_function"}
        | {"module_input_name", "module_output_name"}
    ),
    refused={"use_residual": (False,)},
)
LAYER_NORM = KnownSettings(read=frozenset({"dimension"}))
NORMALIZE = KnownSettings(read=frozenset({"module_input_name", "module_output_name"}))
"""The keys of the `config.json` of a module of sentence-transformers."""


def check_config(values: Mapping[str, Any], of_family: frozenset[str]) -> list[str]:
    """Return problems of a `config.json` of Hugging Face; `of_family` are keys that are read."""
    problems = CONFIG.unsupported(values)
    stated = values.get("auto_map")
    code = stated if isinstance(stated, dict) else {}
    for name in [name for name in code if str(name).startswith("AutoModel")][:1]:
        problems.append(
            f"auto_map: {name} is code of the checkpoint ({shown(code[name])}), which is not "
            "executed; remove it if the weights are those of the library's own model"
        )
    own = next((name for name in HEADS if name in of_family), None)
    heads = values.get("num_attention_heads")
    if own and heads not in (None, values.get(own)):
        problems.append(
            f"num_attention_heads: expected {own}, {values.get(own)}, found {shown(heads)}, which "
            "transformers takes in its place"
        )
    return problems


CONFIGURATION = ("config.json", "generation_config.json")
TOKENIZERS = (
    *"""
tokenizer.json tokenizer_config.json added_tokens.json special_tokens_map.json vocab.json
target_vocab.json merges.txt vocab.txt *.tiktoken tiktoken.model source.spm target.spm spiece.model
sentencepiece.model sentencepiece.bpe.model
""".split(),
)
FEATURE_FILES = ("preprocessor_config.json", "processor_config.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
SETTINGS_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in "bert roberta distilbert camembert albert xlm-roberta xlnet".split()
)
"""Names of the settings of the module Transformer, in the order of sentence-transformers. Old
versions named the file after the class."""
OF_RECIPES = ("source_tokenizer.json", "target_tokenizer.json", "recipe.json", "held_out.tsv")
HUGGING_FACE = (*CONFIGURATION, *TOKENIZERS, *FEATURE_FILES, *ADAPTER)
READ: Mapping[FormatName, tuple[str, ...]] = {
    "Hugging Face": HUGGING_FACE,
    "sentence-transformers": (
        *HUGGING_FACE,
        *("modules.json", "config_sentence_transformers.json", *SETTINGS_FILES),
    ),
    "CTranslate2": (
        *(*CONFIGURATION, *TOKENIZERS, *FEATURE_FILES, "vmap.txt"),
        *"""
vocabulary.json vocabulary.txt shared_vocabulary.json shared_vocabulary.txt source_vocabulary.json
source_vocabulary.txt target_vocabulary.json target_vocabulary.txt
""".split(),
    ),
    "Marian": ("*.spm", "lex.*"),
    "Dragoman": ("config.json", *OF_RECIPES),
    "state dictionary": ("config.json", *OF_RECIPES),
}
"""Patterns of the files that the readers of a format need besides weights."""

READ_FILES = tuple(dict.fromkeys(name for names in READ.values() for name in names))
"""Those of all formats."""

HARMLESS_FILES = tuple(
    """
.* *.md readme* license* licence* copying* notice* citation* *.png *.jpg *.jpeg *.gif *.svg *.pdf
*.log *.csv *.sha256 history.jsonl training_state.pt trainer_state.json training_args.*
optimizer*.pt optimizer*.bin scheduler*.pt scheduler*.bin scaler.pt *.optimizer.npz *.progress.yml
*.vocab rng_state*.pth random_states*.pkl *_results.json events.out.* runs logs eval training
checkpoint-* requirements.txt train_script.py data_config.json model_args.json chat_template.*
normalizer.json similarity_evaluation* latest global_step*
""".split()
)
"""Patterns of files, in lower case, that have no effect on outputs."""

OTHER_WEIGHTS = (
    *"""
*.h5 *.msgpack *.ot *.onnx *.onnx_data onnx openvino* *.gguf *.ggml ggml* *.mlmodel *.mlpackage
coreml *.tflite *.ckpt* *.npz *.safetensors *.safetensors.index.json *.bin *.bin.index.json *.pt
*.pth *.nemo *.engine *.plan *.pkl flax_model* tf_model* consolidated*
""".split(),
)
"""Patterns of weights in formats or variants that are not the ones read."""


def file_notes(
    directory: Path, read: Iterable[str], weights: Iterable[str], folders: Iterable[str] = ()
) -> list[str]:
    """Return notes on the files of a directory that are not read.

    Args:
        read: patterns of the files that are read, see `READ`
        weights, folders: names of the files of weights, and of the folders, that are read
    """
    kept, read = {*weights, *folders}, tuple(read)
    found: dict[str, list[str]] = {"weights": [], "code": [], "unknown": []}
    for path in sorted(directory.iterdir()):
        name, is_folder = path.name, path.is_dir()
        if name.startswith("adapter_model.") and not (directory / "adapter_config.json").exists():
            found["weights"].append(name)
            continue
        if name in kept or _matches(name, read) or _matches(name.lower(), HARMLESS_FILES):
            continue
        kind = "weights" if _matches(name.lower(), OTHER_WEIGHTS) else "unknown"
        found["code" if name.endswith(".py") else kind].append(f"{name}/" if is_folder else name)
    sentences = {
        "weights": "weights in other formats or variants, which are not read",
        "code": "code, which is not executed",
        "unknown": "not known here and not read",
    }
    notes = [f"{listed(names)}: {sentences[kind]}" for kind, names in found.items() if names]
    for pattern in {"vmap.txt", "lex.*"} & {*read}:
        notes += [
            f"{printable(path.name)} is read by --shortlist only: otherwise every token is possible"
            for path in sorted(directory.glob(pattern))
        ]
    return notes


def refuse_broken_links(directory: Path) -> None:
    """Raise a `DragomanError` for a link to nothing, which is no file that is absent."""
    for path in sorted(directory.glob("*")):
        if not (path.exists() or _matches(path.name.lower(), HARMLESS_FILES)):
            raise DragomanError(f"{path}: expected a file, found a link that leads nowhere")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
