"""What several commands share: options, how a result is asked for and told, how commands speak."""
