"""What is read when the user gives no text: a few paragraphs, long enough to be cut to different lengths."""

__all__ = ["TEXTS"]

TEXTS = (
    "The ferry leaves the harbour at seven in the morning, when the fog still hangs over the water and the gulls "
    "sit in rows along the pier. A man in a yellow coat counts the passengers, gives each of them a paper ticket, "
    "and tells the children to stay away from the railing. Two hours later the first of the islands comes into "
    "view, low and green, with a white church at its northern end and a handful of red roofs scattered along the "
    "shore. Nobody on board says much. They have made the crossing before, and they know that the weather can "
    "turn at any moment.",
    "To make the dough, mix 500 grams of flour with 320 millilitres of lukewarm water, two teaspoons of salt and "
    "a little yeast. Knead it for ten minutes, cover the bowl with a towel, and let it rest in a warm place until "
    "it has doubled. Divide it into four pieces, shape each piece into a ball, and wait for another half hour "
    "before you roll them out. Heat the oven as far as it goes. A very hot stone makes the difference between a "
    "crust that is crisp and one that is merely dry; if you have no stone, turn a heavy baking tray upside down "
    "and heat that instead.",
    "In 1854 a physician in London marked every death from cholera on a map of his district. The marks crowded "
    "around a single pump in Broad Street. He persuaded the parish to remove its handle, and the number of new "
    "cases, which had already begun to fall, fell further. The map did not prove how the disease was carried, "
    "since people who lived near the pump shared more than its water, but it turned a quarrel about bad air into "
    "a question that could be answered by counting. Similar maps are drawn today whenever an outbreak has to be "
    "traced to its source.",
    "def mean(values): return sum(values) / len(values). The function above fails when the list is empty, because "
    "it then divides by zero; whether that should be an error, or return nothing at all, depends on who calls it. "
    "Most libraries raise an exception and name the argument. A function that quietly returns zero is worse than "
    "one that stops, for the wrong number travels through the rest of the program and is noticed, if ever, far "
    "away from its cause. Tests should therefore ask for the exception by its type and by its message.",
    "My grandmother kept bees behind the orchard, eleven hives painted in different colours so that each colony "
    "would find its way home. She never wore gloves. Slow hands, she used to say, are the best protection, and "
    "she moved among the hives as if she were under water. In late summer the whole house smelled of wax and "
    "smoke. We children turned the handle of the extractor until our arms hurt, watched the honey run down its "
    "walls in thick ropes, and were allowed to chew the comb that was left over.",
)
