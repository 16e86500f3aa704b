"""The settings of a tokenizer in `tokenizer_config.json` and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from dragoman.errors import DragomanError, shown
from dragoman.reference_model.settings import all_are
from dragoman.runtime.texts.codecs.pieces import AddedPiece
from dragoman.settings.fields import is_integer

from ..formats.json_files import read_json_if_present

CONFIG_FILE = "tokenizer_config.json"
MAP_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
SPECIAL_TOKENS = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""Names of special tokens, in the order in which they are added."""
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

Token = str | AddedToken


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a tokenizer, as `transformers` reads them."""

    path: Path
    """The file, for problems."""
    values: Mapping[str, Any]
    """Fields of tokenizer_config.json and special_tokens_map.json."""
    added: Mapping[int, AddedToken]
    """Added tokens by id."""
    further: tuple[Token, ...] = ()
    """`additional_special_tokens` of special_tokens_map.json."""
    languages: Sequence[str] = ()
    """Tokens of the languages of a multilingual class."""

    def flag(self, name: str, default: bool | None) -> bool | None:
        """Return a setting that is true, false or missing; raise a `DragomanError` if not."""
        value = self.values.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        raise _expected(self.path, name, "true or false", value)

    def integer(self, name: str, default: int) -> int:
        """Return a setting that is a number; raise a `DragomanError` for others."""
        value = self.values.get(name, default)
        if is_integer(value) and 0 <= value < 1 << 20:
            return int(value)
        raise _expected(self.path, name, "an integer of at least 0", value)

    def named(self, defaults: Mapping[str, Token]) -> dict[str, Token]:
        """Return the special tokens that have a name, such as `eos_token`, or a default."""
        by_content = {token.content: token for token in self.added.values()}
        own = (name for name in self.values if name.endswith("_token"))
        names = [*SPECIAL_TOKENS, *(name for name in own if isinstance(self.values[name], str))]
        extra = self.values.get("extra_special_tokens")
        stated = {**self.values, **(extra if isinstance(extra, dict) else {})}
        names += extra if isinstance(extra, dict) else []
        found: dict[str, Token] = {}
        for name in dict.fromkeys(names):
            if name in stated:
                token = _token(self.path, name, stated[name])
                if token is not None:
                    found[name] = by_content.get(content_of(token), token)
            elif name in defaults:
                found[name] = defaults[name]
        return found

    def extras(self, default: Sequence[Token]) -> list[Token]:
        """Return the special tokens without a name; those of the class by default."""
        for name in ("extra_special_tokens", "additional_special_tokens"):
            listed = self.values.get(name)
            if listed and not isinstance(listed, dict):
                return _tokens(self.path, name, listed)
        stated = self.values.get("extra_special_tokens", {})
        return [*self.further, *default] if isinstance(stated, dict) else []


def read_settings(directory: Path, library: Mapping[str, Any] | None) -> TokenizerSettings:
    """Read the settings of a tokenizer; `library` has the fields of tokenizer.json, if it exists.

    Files from before `added_tokens_decoder` keep tokens in files of their own.
    """
    path = directory / CONFIG_FILE
    values = read_json_if_present(path)
    if library is not None:  # its post-processor counts instead
        values = {k: v for k, v in values.items() if k not in ("add_bos_token", "add_eos_token")}
    if values.get("split_special_tokens"):
        raise DragomanError(
            f"{path}: split_special_tokens: expected false, found true; calls have this option"
        )
    if values.get("sp_model_kwargs"):
        raise _expected(path, "sp_model_kwargs", "none", values["sp_model_kwargs"])
    if "added_tokens_decoder" in values:
        listed = values["added_tokens_decoder"]
        if not isinstance(listed, dict):
            raise _expected(path, "added_tokens_decoder", "tokens by id", listed)
        return TokenizerSettings(path, values, _added(path, "added_tokens_decoder", listed))
    further: list[Token] = []
    for name, value in read_json_if_present(directory / MAP_FILE).items():
        if name == "additional_special_tokens" and value:
            further = _tokens(directory / MAP_FILE, name, value)
        elif name == "extra_special_tokens" and isinstance(value, list):
            known = values.get(name) or values.get("additional_special_tokens") or []
            values[name] = [*known, *(token for token in value if token not in known)]
        else:
            values[name] = {**value, "special": True} if _is_token(value) else value
    settings = TokenizerSettings(path, values, {})
    # As in transformers, a token of added_tokens.json that only `further` has is not special.
    named = settings.named({}).values()
    special = set(map(content_of, (*named, *settings.extras(()))))
    added: dict[int, AddedToken] = {}
    for content, token_id in read_json_if_present(directory / ADDED_FILE).items():
        if not is_integer(token_id) or token_id < 0:
            raise _expected(directory / ADDED_FILE, content, "a token id", token_id)
        is_special = content in special
        added[token_id] = AddedToken(content, normalized=not is_special, special=is_special)
    for token in (library or {}).get("added_tokens") or []:
        added |= _added(directory / "tokenizer.json", "added_tokens", {token["id"]: token})
    return TokenizerSettings(path, values, added, tuple(further))


def added_pieces(
    settings: TokenizerSettings, vocabulary: Mapping[str, int], defaults: Mapping[str, str]
) -> tuple[AddedPiece, ...]:
    """Return the tokens that a tokenizer in Python splits texts at.

    Only special tokens that have a name, or are listed as such, are omitted from decoded texts.
    """
    special = [*settings.named(defaults).values(), *settings.extras(())]
    contents = dict.fromkeys(map(content_of, special))
    tokens = dict(settings.added)
    listed = {token.content for token in tokens.values()}
    unused = len(vocabulary.keys() | listed)
    for token in special:
        if content_of(token) not in listed:
            listed.add(content_of(token))
            token_id = vocabulary.get(content_of(token), unused)
            unused += token_id == unused
            made = AddedToken(token, special=True) if isinstance(token, str) else token
            tokens[token_id] = made
    return tuple(
        AddedPiece(
            token_id,
            token.content,
            token.content in contents,
            token.lstrip,
            token.rstrip,
            token.single_word,
        )
        for token_id, token in tokens.items()
    )


def content_of(token: Token) -> str:
    """Return the content of a token."""
    return token if isinstance(token, str) else token.content


def _tokens(path: Path, name: str, listed: Any) -> list[Token]:
    if not isinstance(listed, list):
        raise _expected(path, name, "a list of tokens", listed)
    tokens = (_token(path, name, token) for token in listed)
    return [token for token in tokens if token is not None]


def _added(path: Path, name: str, listed: Mapping[Any, Any]) -> dict[int, AddedToken]:
    added = {}
    for token_id, token in listed.items():
        where = f"{name}.{token_id!s:.20}"
        if not str(token_id).isdecimal() or len(str(token_id)) > 9:
            raise _expected(path, name, "tokens by their ids", token_id)
        if not _is_token(token):
            raise _expected(path, where, "a token with its content", token)
        made = _token(path, where, token)
        assert isinstance(made, AddedToken)
        added[int(token_id)] = made
    return added


def _is_token(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _token(path: Path, name: str, value: Any) -> Token | None:
    if value is None or isinstance(value, str):
        return value or None
    if not _is_token(value):
        raise _expected(path, name, "a token", value)
    flags = {flag: value[flag] for flag in FLAGS if value.get(flag) is not None}
    if not all_are(bool, flags.values()):
        raise _expected(path, name, "flags that are true or false", value)
    return AddedToken(value["content"], **flags)


def _expected(path: Path, name: str, expected: str, found: object) -> DragomanError:
    return DragomanError(f"{path}: {name}: expected {expected}, found {shown(found)}")
