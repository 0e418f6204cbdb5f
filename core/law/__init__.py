"""The law a token is drawn from: logits, filters and what a checkpoint demands; and the noise it is drawn with."""
