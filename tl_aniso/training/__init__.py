"""Small models trained from scratch, with checkpoints handed out as they train."""

from tl_aniso.training.decoder import build_decoder, train_decoder
from tl_aniso.training.loop import BatchLoss, OnCheckpoint, OnStep, TrainedModel, train_model
from tl_aniso.training.objectives import MaskedTokens, next_token_loss
from tl_aniso.training.pair import Pair, PairRecipe, build_pair
from tl_aniso.training.recipe import DecoderRecipe, Recipe
from tl_aniso.training.tokenizer import END_OF_TEXT, MASK, measured_documents, pack_windows, train_tokenizer

__all__ = [
    "END_OF_TEXT",
    "MASK",
    "BatchLoss",
    "DecoderRecipe",
    "MaskedTokens",
    "OnCheckpoint",
    "OnStep",
    "Pair",
    "PairRecipe",
    "Recipe",
    "TrainedModel",
    "build_decoder",
    "build_pair",
    "measured_documents",
    "next_token_loss",
    "pack_windows",
    "train_decoder",
    "train_model",
    "train_tokenizer",
]
