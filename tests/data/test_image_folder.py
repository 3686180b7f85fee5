"""A folder of images: whose each is, what is read of it, and what is refused."""

import numpy as np
import pytest

from codeward._errors import InputError, TooLargeError
from codeward.data import _image_folder as image_folder
from codeward.data import load_user_data


@pytest.fixture
def draw():
    image = pytest.importorskip("PIL.Image")

    def make(path, size=(6, 4), value=200, mode="L"):
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(path)

    return make


def test_a_folder_of_images_by_user_and_class(tmp_path, draw):
    for user in ("ann", "bob", "carl"):
        for label in ("cat", "dog"):
            draw(tmp_path / user / label / "1.png")
    draw(tmp_path / "carl" / "dog" / "2.png", size=(60, 40), value=10)
    data = load_user_data(tmp_path)
    assert data.user_names == ("ann", "bob", "carl")
    assert data.class_names == ("cat", "dog")
    assert data.inputs.shape == (7, 1, 4, 6)
    assert data.firm == 1
    assert data.inputs[0].min() == data.inputs[0].max() == 200
    assert data.inputs[-1].max() == 10


def test_a_folder_of_images_by_class_with_a_list_of_users(tmp_path, draw):
    for label in ("cat", "dog"):
        draw(tmp_path / label / "1.png", mode="RGB")
    assert load_user_data(tmp_path).hashed
    (tmp_path / "users.csv").write_text("file,user\ncat/1.png,ann\ndog/1.png,bob\n", encoding="utf-8")
    data = load_user_data(tmp_path)
    assert data.user_names == ("ann", "bob")
    assert data.inputs.shape == (2, 3, 4, 6)
    draw(tmp_path / "dog" / "2.png")
    with pytest.raises(InputError, match=r"no user for 1 of 3 images \(dog/2.png\); .* a line file,user: add it"):
        load_user_data(tmp_path)


def test_images_are_read_as_a_viewer_shows_them(tmp_path, draw):
    image = pytest.importorskip("PIL.Image")
    upright = np.zeros((4, 6, 3), np.uint8)
    upright[:2] = 240
    plain = image.fromarray(upright)
    for number, turn in {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}.items():  # what makes the stored image
        note = image.Exif()
        note[0x0112] = number
        stored = plain if turn is None else plain.transpose(turn)
        draw(tmp_path / "ann" / "cat" / "1.png")
        stored.save(tmp_path / "ann" / "cat" / f"exif{number}.png", exif=note)
    deep = image.fromarray(upright[:, :, 0].astype(np.uint16) * 256 + 255)
    deep.save(tmp_path / "ann" / "cat" / "deep.png")
    clear = image.fromarray(np.dstack([np.zeros_like(upright), 255 - np.uint8(upright[:, :, 0] > 0) * 255]))
    clear.save(tmp_path / "ann" / "cat" / "clear.png")
    (tmp_path / "ann" / "cat" / "scan.tif").write_bytes(b"")
    draw(tmp_path / "bob" / "dog" / "1.png", mode="RGB")
    data = load_user_data(tmp_path)
    assert data.inputs.shape[1:] == (3, 4, 6)  # turned images count with their turned sides
    assert "files of other kinds are passed over: 1 (.tif)" in data.notes
    for row in data.inputs[1:11]:
        assert (row[:, :2] >= 240).all()
        assert (row[:, 2:] == 0).all()


def test_hostile_folders_are_refused(tmp_path, draw, monkeypatch):
    draw(tmp_path / "ann" / "cat" / "1.png", size=(300, 300))
    (tmp_path / "ann" / "dog").mkdir()
    (tmp_path / "ann" / "dog" / "1.png").write_bytes(b"no image")
    # The second one only looks like an image until its pixels are unpacked.
    (tmp_path / "ann" / "dog" / "2.png").write_bytes((tmp_path / "ann" / "cat" / "1.png").read_bytes()[:60])
    draw(tmp_path / "ann" / "dog" / "3.png")
    with pytest.raises(InputError, match=r"1.png: not a readable image, also .*2.png; 2 of 4 images .* or remove them"):
        load_user_data(tmp_path)
    (tmp_path / "ann" / "cat" / "1.png").rename(tmp_path / "kept")
    (tmp_path / "ann" / "dog" / "2.png").unlink()
    (tmp_path / "ann" / "dog" / "3.png").unlink()
    with pytest.raises(InputError, match=r"dog/1.png: not a readable image, nor any other"):
        load_user_data(tmp_path)
    (tmp_path / "kept").rename(tmp_path / "ann" / "cat" / "1.png")
    (tmp_path / "ann" / "dog" / "1.png").unlink()
    secret = tmp_path.parent / "secret"
    draw(secret / "cat" / "1.png")
    (tmp_path / "eve").symlink_to(secret)
    with pytest.raises(InputError, match="one class only"):
        load_user_data(tmp_path)  # the link is not followed
    monkeypatch.setattr(image_folder, "MAX_PIXELS", 10_000)
    with pytest.raises(TooLargeError, match="300 x 300 pixels are too many"):
        load_user_data(tmp_path)
    draw(tmp_path / "1.png")
    with pytest.raises(InputError, match="everywhere"):
        load_user_data(tmp_path)
