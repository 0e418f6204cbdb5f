"""NextStep-1 and -1.1 (stepfun-ai, Apache-2.0): a causal language model whose image tokens a flow head samples."""
