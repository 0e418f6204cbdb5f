"""LlamaGen (github.com/FoundationVision/LlamaGen): 16x16 pixels a code, of a caption or of a class of ImageNet.

Sun et al. 2024, "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation", arXiv 2406.06525.
Published as pickles, which `polydraft convert llamagen` reads once, tensors only.
"""
