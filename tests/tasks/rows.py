"""The real tasks as rows in SWE-bench's format, with what makes a sandbox of any image with git, bash and Python one of theirs.

SWE-bench's images hold the repository at the commit before the fix. Here `setup` brings the release before it and commits that; the script then does what the scripts of its rows do: bring the tests of the fix, run them between the marks, take them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.tasks import archives, runner, unified

if TYPE_CHECKING:
    from sandman.client import Sandbox
    from tests.tasks.fetch import Materials
    from tests.tasks.unified import Tree

_EOF = "EOF_114329324912"
COMMIT = (
    "git init -q . && git config user.email row@example.test && git config user.name row && git add -A -f"
    " && git commit -qm 'the release before the fix'"
)


@dataclass(frozen=True, slots=True)
class RealRow:
    """A task of the catalog as a row.

    Args:
        materials: the task's releases.
        image: reference of its image.
        top: directory that a sandbox may make.
    """

    materials: Materials
    image: str
    top: str = "/tmp/swe"

    @property
    def workdir(self) -> str:
        """The repository."""
        return f"{self.top}/testbed"

    async def setup(self, box: Sandbox, row: object = None) -> None:
        """What its image would have brought."""
        del row
        parts = (("testbed", self.materials.source_tar()), ("pytest", self.materials.pytest_tar()))
        for name, tar in parts:
            await box.files.write(f"{self.top}/{name}.tar", tar)
            argv = ["python3", "-m", "tarfile", "-e", f"{name}.tar", name]
            await box.exec(argv, cwd=self.top, check=True)
        await box.run(COMMIT, cwd=self.workdir, check=True)

    def row(self, **more: object) -> dict[str, object]:
        """The row; `more` replaces members."""
        task = self.materials.task
        return {
            "instance_id": f"{task.name}__{task.name}-{task.fixed.version}",
            "image": self.image,
            "repo": f"{task.name}/{task.name}",
            "version": task.buggy.version,
            "base_commit": "HEAD",
            "log_parser": "parse_log_pytest_v2",  # names with spaces
            "eval_type": "pass_and_fail",
            "eval_script": self.script(),
            "patch": self.materials.gold_patch,
            "test_patch": self.test_patch(),
            "FAIL_TO_PASS": list(task.fail_to_pass),
            "PASS_TO_PASS": list(task.pass_to_pass()),
        } | more

    def test_patch(self) -> str:
        """The tests of the fix."""
        before, after = (self._tests(tree) for tree in (self.materials.buggy, self.materials.fixed))
        changed = {path for path in before | after if before.get(path) != after.get(path)}
        return unified.diff(
            {path: data for path, data in before.items() if path in changed},
            {path: data for path, data in after.items() if path in changed},
        )

    def _tests(self, tree: Tree) -> Tree:
        return archives.below(tree, self.materials.task.tests)

    def script(self, before: str = "true") -> str:
        """The evaluation; `before` is run ahead of the tests."""
        task = self.materials.task
        layout = {"PYTHONPATH": f"{self.workdir}:{self.top}/pytest", "HOME": self.top}
        variables = runner.environment(runner.Layout(self.top)) | layout | {"TMPDIR": "/tmp"}
        exports = [f"export {name}={value}" for name, value in variables.items()]
        options = f"-rA --tb=short -c /dev/null --rootdir {self.workdir} -p no:cacheprovider"
        return "\n".join(
            [
                "#!/bin/bash", "set -uxo pipefail", *exports, f"cd {self.workdir}",
                f"git checkout HEAD {task.tests}",
                f"git apply -v - <<'{_EOF}'", self.test_patch().removesuffix("\n"), _EOF,
                before,
                ": '>>>>> Start Test Output'",
                f"python3 -s -m pytest {options} {' '.join(task.arguments)}",
                ": '>>>>> End Test Output'",
                f"git checkout HEAD {task.tests}",
            ]
        )  # fmt: skip
