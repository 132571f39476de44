"""What a reader must not take from a frame: cautions that hold of every one, and those of this very frame."""

from typing import Any

__all__ = ["cautions"]


def cautions(frame: Any, energy: Any, isotropy: Any) -> tuple[str, ...]:
    """What the numbers of a frame do not mean; `energy` and `isotropy` are its values, None where it has none."""
    found = []
    if "held_out" in frame and not frame["held_out"].dropna().astype(bool).all():
        found.append(
            "Some rows are in-sample: planes were fitted on documents that are measured too, so E and R are biased "
            "upward."
        )
    missing = sum(int(values["value"].isna().sum()) for values in (energy, isotropy) if values is not None)
    if missing:
        found.append(f"{missing} values are missing. They are left out of means and figures, and never counted as 0.")
    if energy is not None:
        excess = energy[energy["quantity"] == "excess"]
        if len(excess) and excess["low"].isna().all():
            found.append(
                "No interval of an excess is known here, as energies were not kept apart by shards of documents; "
                "'near 1' means within 10%."
            )
        found += [
            "R is a function of E alone and grows with width and with the length of sequences: do not compare it "
            "across models.",
            "A small p-value says that a plane is no random plane, not why; the controls say that.",
        ]
    found += [
        "Intervals are over text, for one training of one model; not over seeds.",
        "The tangent proxy is one linear plane a site. Neither curvature nor the tangent space at a point is measured.",
        "That gradients lie in a plane does not show that they made activations anisotropic; and gradients are not "
        "updates, as the optimiser turns them.",
    ]
    return tuple(found)
