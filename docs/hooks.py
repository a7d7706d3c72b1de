"""Hooks of the documentation site (mkdocs.yml).

Pictures of measurements stay beside their numbers in ``eval/results``; pages link to them as they
lie in the repository, and here the site takes them in. Drawings become part of
their page, so that their colours follow the light and the dark scheme. Blocks of ``console`` are
coloured as shell: Pygments' console takes a comment for the prompt of root.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_PICTURE = re.compile(r"\(((?:\.\./)+)eval/results/([\w.]+\.webp)\)")
_DRAWING = re.compile(r"!\[([^\]]*)\]\((\w+\.svg)\)")


def on_files(files, config):
    """Add the pictures of ``eval/results`` as ``results/pictures/NAME``."""
    for path in sorted((ROOT / "eval" / "results").glob("*.webp")):
        uri = f"results/pictures/{path.name}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to pictures at the site's copy, put drawings into the page, colour commands."""
    markdown = markdown.replace("```console\n", "```sh\n")
    folder = os.path.dirname(page.file.src_uri)

    def picture(match):
        return f"({os.path.relpath(f'results/pictures/{match[2]}', folder or '.')})"

    def drawing(match):
        svg = (ROOT / "docs" / folder / match[2]).read_text(encoding="utf-8")
        body = svg[svg.index("<svg") :]
        lines = " ".join(line.strip() for line in body.splitlines())
        return f'<figure class="drawing" role="img" aria-label="{match[1]}">{lines}</figure>'

    return _DRAWING.sub(drawing, _PICTURE.sub(picture, markdown))
