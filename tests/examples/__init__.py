"""The examples in README.md and docs/: collected from the Markdown, and run."""
