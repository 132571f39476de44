"""Small models trained from scratch, with checkpoints handed out as they train."""

from tl_aniso.training.decoder import OnCheckpoint, OnStep, TrainedDecoder, build_decoder, train_decoder
from tl_aniso.training.recipe import DecoderRecipe
from tl_aniso.training.tokenizer import END_OF_TEXT, measured_documents, pack_windows, train_tokenizer

__all__ = [
    "END_OF_TEXT",
    "DecoderRecipe",
    "OnCheckpoint",
    "OnStep",
    "TrainedDecoder",
    "build_decoder",
    "measured_documents",
    "pack_windows",
    "train_decoder",
    "train_tokenizer",
]
