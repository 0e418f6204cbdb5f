"""From codes to sound: the codecs, and what streams and stretches what they say."""
