"""A history without its future: in a sandbox, on real repositories with the fix in every corner that git has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandman.evaluation.scrub import ScrubError, scrub_git

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandman.client import Sandbox

pytestmark = pytest.mark.timeout(120)

HOST = "registry.example/task:1"
SECRET = "the line that mends it"
MAKE = f"""
set -eu
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.test
at() {{ export GIT_AUTHOR_DATE="2020-01-0$1T00:00:00Z" GIT_COMMITTER_DATE="2020-01-0$1T00:00:00Z"; }}
commit() {{ git add -A; git commit -qm "$1"; }}
git init -q -b main /tmp/inner; cd /tmp/inner
at 1; echo old >lib; commit old; at 3; echo '{SECRET}' >lib; commit 'inner fix'
git init -q -b main /tmp/upstream; cd /tmp/upstream
at 1; echo one >file; commit one; git tag v1; git tag -a v1.0 -m 'the first'
git -c protocol.file.allow=always submodule add -q /tmp/inner sub
git -C sub checkout -q HEAD~1
at 2; echo two >file; commit two; git tag v2
git tag -f -a late -m '{SECRET}' HEAD >/dev/null; git tag -d late >/dev/null
at 3; git tag -a late -m '{SECRET}' HEAD
echo '{SECRET}' >file; commit 'the fix'; git tag v3; git branch fix-it
git rev-parse HEAD >/tmp/fix; git rev-parse HEAD~1 >/tmp/base
git -c protocol.file.allow=always clone -q --recurse-submodules /tmp/upstream /tmp/testbed
cd /tmp/testbed; git -C sub fetch -q /tmp/inner main
git notes add -m '{SECRET}' HEAD; git fetch -q origin fix-it; git replace HEAD HEAD~1
git worktree add -q /tmp/other HEAD; echo '{SECRET}' >>file; git stash -q
git commit-graph write --reachable; git repack -q -d; touch "$(ls .git/objects/pack/*.pack | sed 's/pack$/keep/')"
git checkout -q -b work "$(cat /tmp/base)"; git submodule -q update; echo mine >new; git add new
rm -rf /tmp/upstream /tmp/inner /tmp/other
"""
EVERYWHERE = f"""
for one in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do git cat-file -p $one; done | grep -aF '{SECRET}'
"""


@pytest.fixture
async def box(whole) -> AsyncIterator[Sandbox]:
    async with whole.bed() as bed, bed.sandman.sandbox(image=HOST) as one:
        yield one


async def said(box: Sandbox, command: str, cwd: str = "/tmp/testbed") -> str:
    result = await box.run(command, cwd=cwd, merge_stderr=True)
    return result.stdout_text.strip()


async def test_what_comes_after_head_is_nowhere(box):
    await box.run(MAKE, check=True)
    fix, base = await said(box, "cat /tmp/fix"), await said(box, "cat /tmp/base")
    assert SECRET in await said(box, EVERYWHERE)
    assert SECRET in await said(box, EVERYWHERE, "/tmp/testbed/sub")
    before = await said(box, "git status --short; git diff --cached")
    scrubbed = await scrub_git(box, "/tmp/testbed", absent=[fix])
    assert (scrubbed.head, scrubbed.repositories) == (base, 2)
    assert scrubbed.refs >= 6
    for place in ("/tmp/testbed", "/tmp/testbed/sub"):
        assert await said(box, EVERYWHERE, place) == ""
        assert "could not get object info" in await said(box, f"git cat-file -t {fix}", place)
        assert await said(box, f"grep -raF '{SECRET}' .git", place) == ""
    # What it was before it is still: tree, index, past, versions.
    assert await said(box, "git status --short; git diff --cached") == before
    assert await said(box, "git log --format=%s --all") == "two\none"
    assert (await said(box, "git tag")).split() == ["v1", "v1.0", "v2"]
    assert await said(box, "git describe --tags") == "v2"
    assert await said(box, "git fsck --strict 2>&1") == ""
    assert await said(box, "git branch -a; git remote; git reflog; git stash list") == "* work"
    # Again it finds nothing.
    again = await scrub_git(box, "/tmp/testbed", absent=[fix])
    assert (again.head, again.refs) == (base, 0)


async def test_what_cannot_be_scrubbed_is_told(box):
    make = """
    set -eu; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.test
    git init -q /tmp/up; cd /tmp/up; git config uploadpack.allowFilter true
    for n in 1 2 3; do seq $n 99 >file; git add file; git commit -qm $n; done
    git clone -q --filter=blob:none file:///tmp/up /tmp/partial; cd /tmp/partial; git reset -q --hard HEAD~1
    git -C /tmp/up rev-parse HEAD~2 >/tmp/old
    """
    await box.run(make, check=True)
    with pytest.raises(ScrubError, match="not a git repository"):
        await scrub_git(box, "/tmp")
    with pytest.raises(ScrubError, match="/tmp/none"):
        await scrub_git(box, "/tmp/none")
    with pytest.raises(ScrubError, match="exit code"):
        await scrub_git(box, "/tmp/partial")
    old = await said(box, "cat /tmp/old", "/tmp")
    with pytest.raises(ScrubError, match=f"{old} is still there"):
        await scrub_git(box, "/tmp/up", absent=[old])
