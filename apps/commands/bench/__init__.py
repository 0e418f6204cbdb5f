"""`polydraft bench`: of models (`models.py`) and of the engine itself (`engine.py`)."""
