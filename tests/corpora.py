"""Data sets laid out as those of the hub are, in directories that the library `datasets` reads as it reads the hub."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = 50


def word_tokenizer(*, bos: bool = False, words: int = WORDS) -> PreTrainedTokenizerFast:
    """One token a word of "w0" … "w49", whatever the text is; lengths in tokens are lengths in words."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{n}": n + 3 for n in range(words)}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def sentence(number: int, length: int, salt: int = 0) -> str:
    """A text of `length` words, another for every number and salt."""
    value = number * 1009 + salt * 7919 + 1
    words = []
    for position in range(length):
        value = (value * 1103515245 + 12345 + position) % 2**31
        words.append(f"w{value // 65536 % WORDS}")
    return " ".join(words)


def _card(folder: Path, configs: dict[str, str]) -> None:
    entries = [
        {"config_name": name, "data_files": [{"split": "train", "path": path}]} for name, path in configs.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': entries})}---\n# Card\n")


def _json_gz(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode(), mtime=0))


def _parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def hub(root: Path, *, documents: int = 120) -> Path:
    """Small stand-ins of the paper's five sources: same formats, configurations, file names and columns.

    Documents are 12 (C4), 30 and 31 (Wikipedia), 20 (FineWeb) and 700 (arXiv) tokens long.
    """
    c4, wiki = root / "allenai/c4", root / "wikimedia/wikipedia"
    _card(c4, {"en": "en/c4-train.*.json.gz"})
    for part in range(2):
        rows = [
            {"text": sentence(n, 12, 1), "timestamp": "2019", "url": f"http://c4/{n}"}
            for n in range(part, documents * 8, 2)
        ]
        _json_gz(c4 / f"en/c4-train.0000{part}-of-00002.json.gz", rows)
    _card(wiki, {f"20231101.{code}": f"20231101.{code}/train-*" for code in ("en", "fr")})
    for salt, code in ((2, "en"), (3, "fr")):
        rows = [
            {"id": f"{code}{n}", "url": f"http://{code}/{n}", "title": f"T{n}", "text": sentence(n, 28 + salt, salt)}
            for n in range(documents * 4)
        ]
        _parquet(wiki / f"20231101.{code}/train-00000-of-00001.parquet", rows)
    fineweb = root / "HuggingFaceFW/fineweb"
    _card(fineweb, {"default": "data/*/*", "sample-10BT": "sample/10BT/*"})
    for part in range(3):
        rows = [
            {"text": sentence(n, 20, 4), "id": f"<urn:uuid:{n}>", "language": "en", "token_count": 20}
            for n in range(part, documents * 6, 3)
        ]
        _parquet(fineweb / f"sample/10BT/00{part}_00000.parquet", rows)
    _parquet(fineweb / "data/CC-MAIN-2013-20/000_00000.parquet", [{"text": "not of the sample", "id": "none"}])
    arxiv = root / "ccdv/arxiv-summarization"
    _card(arxiv, {"section": "section/train-*", "document": "document/train-*"})
    rows = [{"article": sentence(n, 700, 5), "abstract": "w1 w2"} for n in range(documents // 4)]
    for config in ("section", "document"):
        _parquet(arxiv / f"{config}/train-00000-of-00001.parquet", rows)
    return root


def paper_recipe(root: Path) -> Path:
    """The library's recipe of the paper's corpus, word for word but for where the data sets lie."""
    shipped = Path(__file__).resolve().parents[1] / "data" / "corpus_paper.yaml"
    text = shipped.read_text()
    for owner in ("allenai", "wikimedia", "HuggingFaceFW", "ccdv"):
        text = text.replace(f"dataset: {owner}/", f"dataset: ./{owner}/")
    path = root / "paper.yaml"
    path.write_text(text)
    return path


def recipe_of(root: Path, **texts: list[Any]) -> Path:
    """A recipe of .jsonl files, one source a keyword, with rows as given (texts, or objects with text and language)."""
    sources = []
    for name, rows in texts.items():
        (root / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        sources.append({"name": name, "kind": "files", "paths": [f"{name}.jsonl"], "language": "en"})
    path = root / "mine.yaml"
    path.write_text(yaml.safe_dump({"format": 1, "name": "mine", "sources": sources}))
    return path
