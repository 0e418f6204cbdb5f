"""Engine: requests of all modalities in groups that are scheduled on one compute thread."""
