"""Text front end: normalisation of numbers and abbreviations, pronunciation, and division of long sentences."""
