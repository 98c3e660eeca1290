"""Local mode leaves nothing of its own, whoever runs it."""

from __future__ import annotations

from gateway.local import own_directory
from gateway.provider.local.trees import remove_tree
from tests.fakes.rights import without_rights


def closed(place) -> None:
    """What overlayfs makes in its working directory, and what a sandbox may leave behind."""
    below = place / "probe/work/work"
    below.mkdir(parents=True)
    (below / "file").write_text("x")
    (below / "link").symlink_to("/")
    below.chmod(0)
    (place / "probe").chmod(0o500)


def test_a_tree_whose_top_is_closed_goes_too(tmp_path):
    for mode in (0o555, 0):
        tree = tmp_path / "tree"
        closed(tree)
        tree.chmod(mode)
        without_rights(lambda tree=tree: remove_tree(tree))
        assert not tree.exists()


def test_its_directory_goes_with_what_nobody_may_look_into(tmp_path):
    def live() -> None:
        with own_directory(tmp_path) as own:
            closed(own)

    without_rights(live)
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_was_left_without_its_lock_goes_too(tmp_path):
    left = tmp_path / "runs/1234-abc"
    left.mkdir(parents=True)
    closed(left)

    def live() -> None:
        with own_directory(tmp_path) as own:
            assert list(own.parent.iterdir()) == [own]

    without_rights(live)


def test_what_another_one_has_stays(tmp_path):
    with own_directory(tmp_path) as first, own_directory(tmp_path) as second:
        assert first != second
        assert first.is_dir()


def test_a_link_in_its_place_is_not_followed(tmp_path):
    beside = tmp_path / "beside"
    beside.mkdir(mode=0o500)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(beside)
    remove_tree(tree)
    assert beside.stat().st_mode & 0o777 == 0o500
    assert not tree.exists()
