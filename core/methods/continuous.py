"""Registry of drafters and verifiers of latents; `core.methods.registry` has those of token ids.

method = LATENTS.parse("eagle(depth=3)+coupled")
"""

from __future__ import annotations

from polydraft.core.continuous.coupled import CoupledVerifier
from polydraft.core.continuous.denoising import LatentSampler
from polydraft.core.continuous.drafters import LatentChainDrafter, LatentLMDrafterNetwork, PreviousLatentFiller
from polydraft.core.continuous.published import ContinuousSpeculative
from polydraft.core.continuous.target import LatentTarget
from polydraft.core.drafters.base import Drafter, NoDrafter
from polydraft.core.drafters.jacobi.window import JacobiDrafter
from polydraft.core.drafters.network.eagle import EagleDrafterNetwork
from polydraft.core.drafters.network.early_exit import EarlyExitDrafterNetwork, truncate_backbone
from polydraft.core.drafters.network.state import DrafterNetwork
from polydraft.core.methods.auto import auto_entry
from polydraft.core.methods.drafters import window_params
from polydraft.core.methods.naming import Registry
from polydraft.core.methods.spec import DrafterSpec, MethodContext, Parameter, ParamValues, VerifierSpec
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

COUPLING = "De Bortoli et al. 2025, arXiv 2501.05370"
CSPD = "Wang et al. 2024, arXiv 2411.11925"


def require_latent_target(context: MethodContext) -> LatentTarget:
    """Return the context's target, typed as a target of latents; others never reach this registry."""
    assert isinstance(context.target, LatentTarget)
    return context.target


def build_latent_chain(context: MethodContext, values: ParamValues, network: DrafterNetwork) -> Drafter:
    """Build a drafter of chains from a network that predicts the target's hidden states.

    The target's own denoising head samples latents from them. `values["looks"]` is the number of denoising steps at
    which the head is evaluated (0: all), `values["depth"]` the number of latents per draft.
    """
    return LatentChainDrafter(
        network, LatentSampler(require_latent_target(context).chain, values["looks"]), values["depth"]
    )


def build_draft_model(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter of an independent small model with its own denoising head."""
    model, head = context.drafter_loaders["lm"]()
    network = LatentLMDrafterNetwork(model, head, require_latent_target(context))
    return LatentChainDrafter(network, LatentSampler(head, values["looks"]), values["depth"])


def build_eagle(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter whose one trained layer predicts the target's next hidden state (EAGLE)."""
    model = context.drafter_loaders["eagle"]()
    return build_latent_chain(context, values, EagleDrafterNetwork(model, context.target))


def build_early_exit(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the drafter that runs the target's first `layers` layers, at least one and fewer than all."""
    layers = min(values["layers"], max(1, context.target.config.num_hidden_layers - 1))
    backbone = truncate_backbone(context.target.model, layers)
    return build_latent_chain(context, values, EarlyExitDrafterNetwork(backbone, context.target))


def build_jacobi(context: MethodContext, values: ParamValues) -> Drafter:
    """Build the Jacobi drafter: the target's latents of the last pass are the guesses of the next.

    `values["window"]` is the number of guesses per pass: a number, or a size that was tuned by batch size.
    """
    # samples the positions of the window that no pass has guessed yet
    filler = PreviousLatentFiller(require_latent_target(context).chain.latent_size)
    # no restarts: a window is never discarded in favour of fresh samples after its first guess was rejected
    return JacobiDrafter(initializer=filler, restart=False, **window_params(values["window"]))


def chain_params(depth: int) -> dict[str, Parameter]:
    """Return the parameters of a drafter of chains of latents; `depth` is the default number of latents."""
    head_steps = Parameter(2, "diffusion steps at which the drafter's head is evaluated; 0 is all", 0, 1000)
    return {"depth": Parameter(depth, "latents guessed a pass", 1, 32), "looks": head_steps}


DRAFTERS: dict[str, DrafterSpec] = {
    spec.name: spec
    for spec in (
        DrafterSpec(
            "ar", "plain decoding, one latent a target pass", "", lambda *_: NoDrafter(), lambda values: "tape",
        ),
        DrafterSpec(
            "jacobi", "the target drafts for itself: every position keeps its noise, and the last pass's latent there "
            "is the guess; no training", "Teng et al. 2024, arXiv 2410.01699, for ids", build_jacobi,
            lambda values: "tape",
            parameters={"window": Parameter(8, "guesses a pass; tuned to the machine unless given", 1, 256)},
        ),
        DrafterSpec(
            "draft", "an independent small model with a head of its own", COUPLING, build_draft_model,
            lambda values: "chain", drafter_kind="lm", parameters=chain_params(3),
        ),
        DrafterSpec(
            "eagle", "one layer predicts the target's next hidden state, from which the target's head draws",
            "Li et al. 2024, arXiv 2401.15077, for ids", build_eagle, lambda values: "chain", drafter_kind="eagle",
            parameters=chain_params(3),
        ),
        DrafterSpec(
            "early-exit", "the target's own first layers and its head, no training",
            "Liu et al. 2024, arXiv 2404.18911", build_early_exit, lambda values: "chain",
            parameters=chain_params(2) | {"layers": Parameter(6, "of the target", 1, 64)},
        ),
    )
}  # fmt: skip
DRAFTERS |= auto_entry({name: DRAFTERS[name] for name in ("ar", "jacobi", "eagle", "draft")})


def build_verifiers(tokens: str, draft_type: str, drafter: str, prefill: int) -> dict[str, VerifierSpec]:
    """Return the registry entries of the verifiers of latents, by name: `tape`, `coupled` and `cspd`.

    Args:
        tokens (str): Plural noun for the tokens in summaries, such as "latents".
        draft_type (str): Type of the drafts that `coupled` and `cspd` verify, which are sampled with fresh noise.
        drafter (str): Default drafter of these two.
        prefill (int): Default number of first tokens that `cspd` leaves to the target.
    """
    # name, guarantee, summary, paper, constructor, and types of drafts it can verify ("": any with shared noise);
    # `default_drafter=""`: not a method by itself, since it is the default verifier of other drafters
    specs = (
        VerifierSpec(
            "tape", "identical", f"the target's own {tokens} under shared noise, by layered dither", "",
            lambda context, values, draft_type: SharedNoiseVerifier(), ("",), default_drafter="",
        ),
        VerifierSpec(
            "coupled", "exact", "the two chains coupled step by step, each step as often as any coupling can", COUPLING,
            lambda context, values, draft_type: CoupledVerifier(), (draft_type,), default_drafter=drafter,
        ),
        VerifierSpec(
            "cspd", "lossy", "as published: the ratio of the chains' last steps, both driven by one noise", CSPD,
            lambda context, values, draft_type: ContinuousSpeculative(values["prefill"]), (draft_type,),
            default_drafter=drafter,
            parameters={"prefill": Parameter(prefill, f"first {tokens} that the target generates alone", 0, 10**6)},
        ),
    )  # fmt: skip
    return {spec.name: spec for spec in specs}


LATENTS = Registry("latents", DRAFTERS, build_verifiers("latents", draft_type="chain", drafter="eagle", prefill=13))
