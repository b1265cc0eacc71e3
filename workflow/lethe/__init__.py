"""Reference implementation of three LLM-unlearning papers: MASC, GROM and DualOptim+."""
