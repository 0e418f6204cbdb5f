"""Image quality by networks: scores and distances of planted images, and the command that reports them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from polydraft.apps.bench.image.quality import inception
from polydraft.apps.bench.image.quality.clip import Clip
from polydraft.apps.bench.image.quality.metrics import Frechet, pixels
from polydraft.apps.bench.image.quality.quality import CHANCE, Quality, Wanted
from polydraft.apps.lab.judging.texture_statistics import frechet_distance

from ...modalities.image.families.folders import FOLDERS
from ..command_line import assert_refused, run
from .clip_folder import LONGEST, SIDE, WIDTH, write

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("clip") / "tiny-clip")


@pytest.fixture(scope="session")
def clip(clip_folder: Path) -> Clip:
    return Clip(str(clip_folder), CPU)


def picture(seed: int, shift: int = 0, size: tuple[int, int] = (40, 48)) -> Image.Image:
    """Return an image of noise, brighter by `shift`."""
    noise = np.random.default_rng(seed).integers(0, 96, (*size, 3))
    return Image.fromarray((noise + shift).astype(np.uint8))


def test_clip_features_match_transformers_with_pil_resizing(clip: Clip):
    shown = [picture(0, size=(64, 64)), picture(1, 120, size=(64, 64))]
    resized = [np.asarray(one.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for one in shown]
    eye = clip.eye
    seen = (torch.tensor(np.stack(resized)) / 255 - torch.tensor(eye.image_mean)) / torch.tensor(eye.image_std)
    with torch.inference_mode():
        wanted = clip.model.get_image_features(seen.movedim(-1, 1)).pooler_output
    assert clip(shown).shape == (2, WIDTH) and clip(shown).dtype == torch.float64
    torch.testing.assert_close(clip(shown).float(), wanted, atol=1e-4, rtol=1e-4)


def test_clip_score_is_cosine_clamped_at_zero(clip: Clip):
    shown, captions = [picture(seed, 40 * seed) for seed in range(4)], ["a red cat", "two owls", "night", "late cat"]
    with torch.inference_mode():
        read = clip.read(captions)
        texts = clip.get_text_features(read["input_ids"], read["attention_mask"]).double()
    cosines = torch.cosine_similarity(clip(shown), texts)
    assert clip.scores(shown, captions) == pytest.approx((100 * cosines.clamp(min=0)).tolist(), abs=1e-2)
    assert cosines.std() > 0.01


def test_long_caption_is_truncated_with_note(clip: Clip):
    long = " ".join(["a red cat"] * LONGEST)
    ids = clip.read([long])["input_ids"][0]
    assert len(ids) == LONGEST and ids[-1] == clip.words.eos_token_id
    assert clip.cut([long, "a cat"]) == 1
    assert clip.scores([picture(0)], [long])[0] >= 0


def test_batched_distance_matches_distance_of_two_samples():
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(40, 5, generator=generator, dtype=torch.float64) * scale + scale for scale in (1, 2))
    metric = Frechet(5)
    for part in one.split(7):
        metric.stay(part)
    for cloud in (other, one, other):
        metric.forget()
        for part in cloud.split(16):
            metric.feed(part)
        assert metric.distance() == pytest.approx(frechet_distance(one, cloud), abs=1e-6)


class Painter:
    """Pipeline whose methods return planted images."""

    def __init__(self, **shifts: int) -> None:
        self.shifts = shifts

    def __call__(self, texts: Sequence[str], method: str, seed: list[int], **options: Any) -> Any:
        assert len(texts) == len(seed) <= 5 and options == {"temperature": 1.0}
        drawn = [picture(one, self.shifts[method]) for one in seed]
        return SimpleNamespace(images=drawn, stats=SimpleNamespace(target_passes=1))


def reference(folder: Path, count: int, shift: int = 0) -> Path:
    """Write images of several sizes, one of them in a subfolder."""
    (folder / "more").mkdir(parents=True)
    for seed in range(count):
        name = folder / ("more" if seed == 0 else "") / f"{seed}.png"
        picture(10**4 + seed, shift, size=(40 + seed % 2, 48)).save(name)
    return folder


def test_shifted_images_score_worse_equal_ones_same(clip_folder: Path, tmp_path: Path):
    folder = reference(tmp_path / "reference", 13)
    judge = Quality(Wanted(13, str(clip_folder), str(folder), "clip"), ["a red cat", "two owls"], 5, CPU)
    assert judge.texts[:3] == ["a red cat", "two owls", "a red cat"] and len(judge.texts) == 13
    names = ["ar", "same", "near", "far"]
    found = judge.measure(Painter(ar=0, same=0, near=10, far=120), names, temperature=1.0)  # type: ignore[arg-type]
    assert list(found) == ["ar", CHANCE, "same", "near", "far"]
    plain, chance, same, near, far = found.values()
    assert same == plain and same["same_pictures"] == 1 and same["from_plain"] == 0 and same["clip_delta"] == 0
    assert chance["same_pictures"] == far["same_pictures"] == 0
    assert far["from_plain"] > 3 * chance["from_plain"] > 0 and far["fid"] > 3 * plain["fid"] > 0
    assert far["from_plain"] > near["from_plain"] > 0 and far["clip_error"] > 0
    drawn = [clip_of(judge)([picture(seed, 120) for seed in range(13)]) for _ in range(2)]
    plainly = clip_of(judge)([picture(seed) for seed in range(13)])
    assert far["from_plain"] == pytest.approx(frechet_distance(plainly, drawn[0]), abs=1e-4)
    headers, rows = judge.sheet(found)
    assert headers == ["method", "same pictures", "CLIP", "Δ", "from plain", "FID, CLIP"]
    assert all(len(row) == len(headers) for row in rows) and rows[2][:2] == ["same", "100 %"]
    assert "13 pictures of" in judge.title and "shrink with more pictures" in judge.notes()[0]
    assert judge.about()["features"] == str(clip_folder)


def clip_of(judge: Quality) -> Clip:
    assert judge.clip is not None
    return judge.clip


def test_one_different_image_breaks_equality(clip_folder: Path):
    class Slip(Painter):
        def __call__(self, texts: Sequence[str], method: str, seed: list[int], **options: Any) -> Any:
            done = super().__call__(texts, method, seed, **options)
            if method == "slip" and 6 in seed:
                done.images[seed.index(6)].paste((255, 0, 255), (0, 0, 16, 16))
            return done

    judge = Quality(Wanted(8, str(clip_folder), features="clip"), ["a cat"], 3, CPU)
    found = judge.measure(Slip(ar=0, slip=0), ["ar", "slip"], temperature=1.0)  # type: ignore[arg-type]
    assert found["slip"]["same_pictures"] == 7 / 8 and found["slip"]["from_plain"] > 0
    assert judge.sheet(found)[1][2][1] == "88 %"


class Blurred(torch.nn.Module):
    """Stand-in for the Inception network that returns channel means in float32."""

    def forward(self, seen: Tensor) -> Tensor:
        assert seen.dtype == torch.uint8
        return seen.float().mean((-2, -1)).repeat(1, 700)[:, :2048]


def test_inception_features_any_image_size_keep_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.save({"fc.bias": torch.zeros(2)}, tmp_path / inception.FILE)
    given: list[dict[str, Tensor]] = []
    monkeypatch.setattr(inception, "network", lambda found: given.append(found) or Blurred())  # type: ignore[func-returns-value]
    eye = inception.Inception(tmp_path, CPU)
    shown = [picture(0), picture(1), picture(2, 90, size=(20, 24)), picture(3)]
    means = torch.stack([pixels(one).double().mean((-2, -1)) for one in shown])
    torch.testing.assert_close(eye(shown)[:, :3], means, atol=1e-3, rtol=1e-5)
    assert list(given[0]) == ["fc.bias"] and "not the published" in eye.about


def test_the_network_itself_where_it_is_installed(tmp_path: Path):
    """Check torch-fidelity's class with random weights, read with its pickle reader."""
    fidelity = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fidelity.FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        patched.setattr(fidelity.torch, "load", lambda *_, **__: {})
        bare = fidelity.FeatureExtractorInceptionV3("bare", ["2048"], "nowhere")
    save_file(bare.state_dict(), tmp_path / "inception.safetensors")
    eye = inception.Inception(tmp_path / "inception.safetensors", CPU)
    assert eye([picture(0), picture(1)]).shape == (2, 2048)


# --- command


@pytest.fixture(scope="session")
def janus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("janus") / "tiny-janus"
    folder.mkdir()
    FOLDERS["janus"](folder)
    return folder


@pytest.fixture(scope="session")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("captions") / "captions.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("a red cat", "two foxes")))
    return file


def image_bench_arguments(captions: Path, *options: Any) -> list[Any]:
    timed = ["--prompts", "1", "--repeats", "1", "--methods", "jacobi(window=8)", "--guidance", "1"]
    return ["bench", "image", *timed, "--captions", captions, *options]


def test_end_to_end(janus: Path, clip_folder: Path, captions: Path, tmp_path: Path):
    folder = reference(tmp_path / "reference", 3)
    options = ["--pictures", "3", "--clip", clip_folder, "--fid", folder, "--fid-features", "clip", "--few"]
    options += ["--model", janus, "--batch", "2"]
    done = run(*image_bench_arguments(captions, *options, "-o", tmp_path / "out", "--json"))
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    assert value == json.loads((tmp_path / "out" / "image.json").read_text())
    about = value["quality"]
    assert (about["pictures"], about["captions"], about["reference_pictures"], about["width"]) == (3, 2, 3, WIDTH)
    plain, jacobi = (row["quality"] for row in value["blocks"][0]["rows"])
    assert jacobi == plain and plain["same_pictures"] == 1 and plain["from_plain"] == 0 < plain["fid"]
    assert about["other_seeds"]["from_plain"] > 0 == about["other_seeds"]["same_pictures"]
    assert value["world"] is None and value["captions"] == str(captions)
    assert "judging jacobi(window=8): 3/3 pictures" in done.stderr and "3/3 pictures\n" in done.stderr
    assert "its loop for tiny-janus cannot do without" in value["notes"][0]
    markdown = (tmp_path / "out" / "image.md").read_text()
    assert "| jacobi(window=8) | 100 % |" in markdown and "3 pictures in 6 features are far too large" in markdown


BY_CLIP = ["--clip", "CLIP", "--fid-features", "clip", "--few"]
WRONG: dict[str, tuple[list[str], str]] = {
    "no such folder": ([*BY_CLIP, "--fid", "nowhere"], "there is no data at nowhere"),
    "an empty folder": ([*BY_CLIP, "--fid", "EMPTY"], "EMPTY has no file to read"),
    "too few drawn": (["--clip", "CLIP", "--fid-features", "clip"], "needs 7 pictures and 2 are drawn"),
    "too few to compare with": (
        ["--clip", "CLIP", "--fid", "FEW", "--fid-features", "clip", "--pictures", "7"],
        "needs 7 pictures and 3 are in",
    ),
    "no Inception": (["--fid", "FEW"], "--fid-features clip"),
    "no file of it": (["--inception", "none.pth"], "FID needs weights that are not at none.pth"),
    "a pickle": (["--inception", "PICKLE"], "cannot be read as a checkpoint of tensors"),
    "features of no CLIP": (["--fid-features", "clip"], "needs a CLIP"),
    "both": (["--clip", "CLIP", "--fid-features", "clip", "--inception", "x"], "exclude each other"),
    "nothing to judge": (["--pictures", "3"], "ask for --clip"),
    "no distance": (["--clip", "CLIP", "--few"], "--few is about distances"),
    "no CLIP there": (["--clip", "nowhere"], "there is no CLIP at nowhere"),
    "a model of pictures": (["--clip", "EMPTY"], "has no config.json"),
    "no captions": (["--captions", "BLANK", "--clip", "CLIP"], "blank.txt holds nothing to measure"),
    "a caption of no known word": (["--captions", "STRANGE", "--prompts", "1"], "can generate nothing that"),
    "a world as well": (["--world", "flat", "--clip", "CLIP"], "exclude each other"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_missing_resources_are_reported_in_one_sentence(
    name: str, clip_folder: Path, captions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    places = {"CLIP": clip_folder} | {name: tmp_path / name for name in ("EMPTY", "FEW", "PICKLE")}
    places["BLANK"] = tmp_path / "blank.txt"
    places["BLANK"].write_text("\n")
    places["STRANGE"] = tmp_path / "strange.txt"
    places["STRANGE"].write_text("two frogs\n\nqwertz\n")
    places["EMPTY"].mkdir()
    reference(places["FEW"], 3)
    torch.save(SimpleNamespace(a=1), places["PICKLE"])
    options, word = WRONG[name]
    arguments = [places.get(option, option) for option in options]
    assert_refused(run(*image_bench_arguments(captions, *arguments, "-o", tmp_path / "out")), word)
    assert not (tmp_path / "out").exists()


def test_damaged_image_is_reported_before_generation(clip_folder: Path, captions: Path, tmp_path: Path):
    damaged = reference(tmp_path / "reference", 3) / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:500])
    done = run(
        *image_bench_arguments(
            captions, "--clip", clip_folder, "--fid-features", "clip", "--few", "--fid", damaged.parent
        )
    )
    assert done.exit_code == 2 and "timing" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "2.png is cut off" in line and "replace or remove it" in line


def test_without_torchmetrics(clip_folder: Path, captions: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert_refused(run(*image_bench_arguments(captions, "--clip", clip_folder)), "pip install 'polydraft[bench]'")


def test_without_torch_fidelity(tmp_path: Path, captions: Path, monkeypatch: pytest.MonkeyPatch):
    import torchmetrics.image.fid as fid

    monkeypatch.setattr(fid, "_TORCH_FIDELITY_AVAILABLE", False)
    torch.save({"fc.bias": torch.zeros(2)}, tmp_path / "given.pth")
    done = run(*image_bench_arguments(captions, "--inception", tmp_path / "given.pth"))
    assert_refused(done, "pip install 'polydraft[inception]'")


def test_pickled_clip_is_refused(clip_folder: Path, captions: Path, tmp_path: Path):
    for file in clip_folder.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert_refused(run(*image_bench_arguments(captions, "--clip", tmp_path)), "has no safetensors")
    torch.save({}, tmp_path / "pytorch_model.bin")
    assert_refused(run(*image_bench_arguments(captions, "--clip", tmp_path)), "pytorch_model.bin is a pickle")
