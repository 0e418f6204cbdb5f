"""Pictures of which target pass committed what: of drawn pictures, answers and speech."""
