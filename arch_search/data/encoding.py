"""The tokenizer that made prepared data, for text that is not in them."""

from dataclasses import replace

from arch_search.data.manifest import Manifest
from arch_search.data.tokenizers import Tokenizer, find_tokenizer
from arch_search.data.tokenizers.json_file import read_json
from arch_search.errors import UsageError

FILE = "tokenizer.json"


def tokenizer_of(manifest: Manifest) -> Tokenizer:
    """The tokenizer by the file kept with the data, or by its name in the registry.

    Raises:
        UsageError: a package that the tokenizer needs is missing, or the file is another one.
    """
    path = manifest.folder / FILE
    if FILE not in manifest.files:
        found = find_tokenizer(manifest.tokenizer)
        assert isinstance(found, Tokenizer)
        return found
    read = read_json(path.read_bytes(), name=manifest.tokenizer, where=str(path))
    if read.vocabulary > manifest.vocabulary:
        raise UsageError(
            f"{path} has {read.vocabulary} tokens, the data {manifest.vocabulary}; "
            "prepare the data again"
        )
    return replace(read, end_of_document=manifest.end_of_document)
