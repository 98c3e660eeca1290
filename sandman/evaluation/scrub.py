"""A repository without its future: what comes after HEAD is taken out of the sandbox's git history.

Images of tasks hold whole clones: the fix is in them, and agents have read it there (`git log --all`, a reflog, a packed object by its
hash). What goes: branches but HEAD's own, tags that lead beyond HEAD, remotes, notes, stashes, replacements, reflogs, other work trees,
FETCH_HEAD and its like, alternates, kept packs, the commit graph, and every object that neither HEAD nor the index needs; of submodules
and of repositories inside the tree as well. Tags of the past stay: versions are made of them. Then it is looked whether any commit is
left that is no ancestor of HEAD. A partial clone, whose objects are elsewhere, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandman.client import Sandbox

SCRUB_S = 900.0
"""Seconds: a history of gigabytes is packed anew within minutes."""
MOST_TOLD = 2000
"""Characters of what git said, in an error."""

TRUSTED = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""The repository may be another user's than the one who works in it."""

SCRIPT = r"""
set -eu
export LC_ALL=C GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1
top=$1; shift
cd "$top"
git rev-parse --is-inside-work-tree >/dev/null

scrub() { # in $GIT_DIR
    head=$(git rev-parse --verify 'HEAD^{commit}')
    own=$(git symbolic-ref -q HEAD || echo none)
    born=$(git log -1 --format=%ct "$head")
    for one in $(git remote); do git remote remove "$one"; done
    rm -rf "$GIT_DIR/worktrees" "$GIT_DIR/logs" "$GIT_DIR/rr-cache" "$GIT_DIR/lost-found" "$GIT_DIR/refs/bisect" "$GIT_DIR/refs/remotes" \
        "$GIT_DIR/sequencer" "$GIT_DIR/rebase-merge" "$GIT_DIR/rebase-apply"
    for one in FETCH_HEAD ORIG_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD AUTO_MERGE COMMIT_EDITMSG MERGE_MSG SQUASH_MSG \
        BISECT_LOG BISECT_START BISECT_EXPECTED_REV objects/info/commit-graph; do
        rm -f "$GIT_DIR/$one"
    done
    rm -rf "$GIT_DIR/objects/info/commit-graphs"
    past=$(git for-each-ref --merged "$head" --format='%(creatordate:unix) %(refname)' refs/tags |
        while read -r when name; do if [ "${when:-0}" -le "$born" ]; then echo "$name"; fi; done)
    git for-each-ref --format='%(refname)' | while read -r name; do
        if [ "$name" = "$own" ]; then continue; fi
        if printf '%s\n' "$past" | grep -qxF -e "$name"; then continue; fi
        printf 'delete %s\n' "$name"
    done >"$GIT_DIR/sandman-gone"
    git update-ref --no-deref --stdin <"$GIT_DIR/sandman-gone"
    refs=$((refs + $(wc -l <"$GIT_DIR/sandman-gone")))
    rm -f "$GIT_DIR/sandman-gone"
    # Pseudo-refs of other names, and refs that are broken, are no refs to git.
    find "$GIT_DIR" -maxdepth 1 -type f -name '*_HEAD' -exec rm -f {} +
    rm -rf "$GIT_DIR"/objects/pack/*.keep "$GIT_DIR"/objects/pack/multi-pack-index*
    # With -a and without -l what an alternate holds is copied: it is not needed then, and would show all that it has.
    git -c repack.writeBitmaps=false -c gc.writeCommitGraph=false repack -a -d -q
    rm -f "$GIT_DIR/objects/info/alternates" "$GIT_DIR/objects/info/http-alternates"
    git prune --expire=now
    git prune-packed -q
    verify "$@"
}

verify() {
    git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' >"$GIT_DIR/sandman-all"
    sed -n 's/^commit //p' "$GIT_DIR/sandman-all" | sort >"$GIT_DIR/sandman-there"
    git rev-list "$head" | sort >"$GIT_DIR/sandman-past"
    left=$(comm -23 "$GIT_DIR/sandman-there" "$GIT_DIR/sandman-past" | wc -l)
    rm -f "$GIT_DIR/sandman-all" "$GIT_DIR/sandman-there" "$GIT_DIR/sandman-past"
    if [ "$left" -ne 0 ]; then echo "$GIT_DIR: $left commits are left that are no ancestors of HEAD" >&2; exit 3; fi
    for one in "$@"; do
        if git cat-file -e "$one" 2>/dev/null; then echo "$GIT_DIR: $one is still there" >&2; exit 3; fi
    done
}

refs=0
repositories=0
main=$(cd "$(git rev-parse --git-dir)" && pwd)
inner=$(find . -name .git -type d -prune -print; find "$main/modules" -type f -name HEAD -exec dirname {} \; 2>/dev/null || true)
for dir in $(printf '%s\n%s\n' "$main" "$inner" | while read -r d; do if [ -d "$d/objects" ]; then (cd "$d" && pwd); fi; done | sort -u); do
    GIT_DIR=$dir; export GIT_DIR
    if ! git rev-parse -q --verify 'HEAD^{commit}' >/dev/null; then continue; fi
    scrub "$@"
    repositories=$((repositories + 1))
    if [ "$dir" = "$main" ]; then first=$head; fi
done
unset GIT_DIR
echo "scrubbed ${first:?} $refs $repositories"
"""


class ScrubError(Exception):
    """The history could not be taken out, or something of it is left; what git said."""


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What is left: `head` is the commit; so many refs are gone, of so many repositories."""

    head: str
    refs: int
    repositories: int


async def scrub_git(box: Sandbox, path: str, *, absent: Sequence[str] = ()) -> Scrubbed:
    """Take the future out of the git history at this path of a sandbox; before an agent, or an evaluation, gets it.

    Needs git, sh and the usual programs of an image that has a repository. May be repeated.

    Args:
        box: the sandbox.
        path: directory of the work tree.
        absent: commits that must not be there afterwards, as the fix's own.

    Raises:
        ScrubError: it could not be done, or was not enough.
        SandmanError: the sandbox failed.
    """
    argv = ["sh", "-c", SCRIPT, "sh", path, *absent]
    result = await box.exec(argv, env=TRUSTED, timeout_s=SCRUB_S, merge_stderr=True)
    words = result.stdout_text.split()
    if not result.ok or len(words) < 4 or words[-4] != "scrubbed":
        told = result.stdout_text.strip()[-MOST_TOLD:]
        how = "it took too long" if result.timed_out else f"exit code {result.exit_code}"
        raise ScrubError(f"the history of {path} could not be scrubbed ({how}): {told}")
    return Scrubbed(words[-3], int(words[-2]), int(words[-1]))
