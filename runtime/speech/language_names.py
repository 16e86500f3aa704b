"""English names of the languages of Whisper (Radford et al. 2022, appendix E), by ISO 639 code."""

from __future__ import annotations

_NAMES = """
af=afrikaans; am=amharic; ar=arabic; as=assamese; az=azerbaijani; ba=bashkir; be=belarusian;
bg=bulgarian; bn=bengali; bo=tibetan; br=breton; bs=bosnian; ca=catalan,valencian; cs=czech;
cy=welsh; da=danish; de=german; el=greek; en=english; es=spanish,castilian; et=estonian;
eu=basque; fa=persian; fi=finnish; fo=faroese; fr=french; gl=galician; gu=gujarati; ha=hausa;
haw=hawaiian; he=hebrew; hi=hindi; hr=croatian; ht=haitian creole,haitian; hu=hungarian;
hy=armenian; id=indonesian; is=icelandic; it=italian; ja=japanese; jw=javanese; ka=georgian;
kk=kazakh; km=khmer; kn=kannada; ko=korean; la=latin; lb=luxembourgish,letzeburgesch;
ln=lingala; lo=lao; lt=lithuanian; lv=latvian; mg=malagasy; mi=maori; mk=macedonian;
ml=malayalam; mn=mongolian; mr=marathi; ms=malay; mt=maltese; my=myanmar,burmese; ne=nepali;
nl=dutch,flemish; nn=nynorsk; no=norwegian; oc=occitan; pa=punjabi,panjabi; pl=polish;
ps=pashto,pushto; pt=portuguese; ro=romanian,moldavian,moldovan; ru=russian; sa=sanskrit;
sd=sindhi; si=sinhala,sinhalese; sk=slovak; sl=slovenian; sn=shona; so=somali; sq=albanian;
sr=serbian; su=sundanese; sv=swedish; sw=swahili; ta=tamil; te=telugu; tg=tajik; th=thai;
tk=turkmen; tl=tagalog; tr=turkish; tt=tatar; uk=ukrainian; ur=urdu; uz=uzbek; vi=vietnamese;
yi=yiddish; yo=yoruba; yue=cantonese; zh=chinese,mandarin
"""

CODES: dict[str, str] = {
    name: code
    for entry in _NAMES.replace("\n", " ").split(";")
    for code, _, names in [entry.strip().partition("=")]
    for name in names.split(",")
}
"""Name in lower case -> code."""


def language_code(name: str) -> str:
    """The code of a language given by name, by code or by Whisper's token, in any case."""
    folded = name.strip().lower().removeprefix("<|").removesuffix("|>")
    return CODES.get(folded, folded)


def language_name(code: str) -> str:
    """The English name of a code; the code itself if none is known."""
    return next((name for name, known in CODES.items() if known == code), code)
