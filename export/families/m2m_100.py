"""M2M100 (Fan et al. 2020), its descendants of WMT 2021, and NLLB (NLLB Team 2022).

The model is a BART with pre-norm and sinusoidal positions. Languages are listed in the order of
their token ids, which checkpoints without `tokenizer.json` do not store.
"""
# ruff: noqa: SIM905

import math
from functools import partial

import torch
from torch import Tensor

from dragoman.reference_model import ConfigError, ModelConfig
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import PieceModel, TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ..tokenizers.classes import NLLB
from ..tokenizers.files import all_present, check_has_tokens, check_ids, read_vocabulary
from ..tokenizers.multilingual import (
    FAIRSEQ_MODEL,
    Multilingual,
    fairseq_pieces,
    has_languages,
    multilingual_files,
    multilingual_library_file,
)
from ..tokenizers.settings import added_pieces, read_settings
from .bart import POSITIONS, SETTINGS, TABLES, config_of, tie, weight_name, with_separate_tables
from .family import ComputedWeights, Family


def _config(values: Values) -> ModelConfig:
    described = config_of(
        values,
        {"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
        norm_order="pre",
        pad_has_position=False,
    )
    check_width(described.d_model)
    return described


def check_width(d_model: int) -> None:
    """Raise a `ConfigError` if there are too few columns for two wavelengths."""
    if d_model < 4:
        raise ConfigError([f"d_model: expected at least 4, for two wavelengths, found {d_model}"])


def position_table(first: int, positions: int, d_model: int) -> Tensor:
    """Compute sines in the first half of the columns, then cosines, [positions, d_model].

    Wavelengths run from 2 pi to 20000 pi inclusive. The table begins with the position `first`,
    and is computed in float32, as in training.
    """
    half = d_model // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angle = torch.arange(first, first + positions).float()[:, None] * frequency
    missing = torch.zeros(positions, d_model - 2 * half)
    return torch.cat([angle.sin(), angle.cos(), missing], dim=1)


def _convert_weights(weights: Weights, config: ModelConfig) -> list[str]:
    """Drop the tables of positions in old checkpoints, and keep one of tied tables."""
    for stack, name in POSITIONS.items():
        for old in (name, f"model.{stack}.embed_positions.weights"):
            weights.pop(old, None)
    return tie(weights, config)


def _computed_weights(config: ModelConfig) -> ComputedWeights:
    """Return the tables of positions, which begin after the padding token's row."""
    first, d_model = config.pad_token_id + 1, config.d_model
    source, target = config.max_source_positions, config.max_target_positions
    return {
        POSITIONS["encoder"]: lambda: position_table(first, source, d_model),
        POSITIONS["decoder"]: lambda: position_table(first, target, d_model),
    }


M2M_100_CODES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi
hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns
oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh
zu
""".split()

WMT21_CODES = """
en ha is ja cs ru zh de
""".split()

NLLB_CODES = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab
ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn
ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl
cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn
dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn
fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn
heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn
jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn
kaz_Cyrl kbp_Latn kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn
lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn
luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn mni_Beng
khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn
nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn
slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn
sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi
taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab
ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn
yue_Hant zho_Hans zho_Hant zul_Latn
""".split()

_M2M_100_PATTERN = "[a-z]{2,4}"
M2M_100_LANGUAGES, WMT21_LANGUAGES = (
    Multilingual(codes, _M2M_100_PATTERN, "prefix", "first", form="__{}__")
    for codes in (M2M_100_CODES, WMT21_CODES)
)
NLLB_LANGUAGES = Multilingual(NLLB_CODES, "[a-z]{3}_[A-Z][a-z]{3}", "prefix", "first")


DEFAULT_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
}
"""Special tokens of checkpoints that state none."""


def _numbered_pieces(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read a SentencePiece model and the vocabulary that numbers its pieces; languages follow."""
    if not all_present(checkpoint.directory, FAIRSEQ_MODEL, "vocab.json"):
        return None
    model, path = checkpoint.directory / FAIRSEQ_MODEL, checkpoint.directory / "vocab.json"
    vocabulary = read_vocabulary(path, checkpoint.vocab_size)
    special = [
        checkpoint.special(name, DEFAULT_TOKENS[f"{name}_token"])
        for name in ("bos", "pad", "eos", "unk")
    ]
    end, unknown = special[2:]
    check_has_tokens(path, vocabulary, end, unknown)
    of_wmt21 = checkpoint.settings.get("language_codes") == "wmt21"
    languages = WMT21_LANGUAGES if of_wmt21 else M2M_100_LANGUAGES
    tokens = languages.tokens_from(len(vocabulary), checkpoint.added_tokens())
    check_ids(path, tokens, checkpoint.vocab_size)
    load_sentencepiece(model)
    hidden = {*special, *map(languages.token, tokens)}
    pieces = {piece: token for piece, token in vocabulary.items() if piece not in hidden}
    added = added_pieces(read_settings(checkpoint.directory, None), vocabulary, DEFAULT_TOKENS)
    tokenizer = PieceModel(model, pieces, vocabulary[unknown], added=added)
    return multilingual_files(checkpoint, languages, tokenizer, tokens, vocabulary[end])


def _is_nllb(checkpoint: TokenizerCheckpoint) -> bool:
    if has_languages(checkpoint, NLLB_LANGUAGES):
        return True
    has_vocabulary = (checkpoint.directory / "vocab.json").exists()
    return not has_vocabulary and not has_languages(checkpoint, M2M_100_LANGUAGES)


TOKENIZERS = (
    TokenizerKind(
        ("NllbTokenizer",),
        (
            partial(multilingual_library_file, languages=NLLB_LANGUAGES),
            partial(fairseq_pieces, languages=NLLB_LANGUAGES, kind=NLLB),
        ),
        NLLB_LANGUAGES,
        matches=_is_nllb,
    ),
    TokenizerKind(
        ("M2M100Tokenizer",),
        (_numbered_pieces, partial(multilingual_library_file, languages=M2M_100_LANGUAGES)),
        M2M_100_LANGUAGES,
    ),
)


M2M_100 = Family(
    config=_config,
    weight_name=weight_name,
    convert_weights=_convert_weights,
    tokenizers=TOKENIZERS,
    computed_weights=_computed_weights,
    positions_grow=True,
    adjust_config=with_separate_tables,
    settings=SETTINGS,
    tables=TABLES,
)
