"""Choice among identical drafters by measured speed."""
