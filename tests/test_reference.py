"""The generated reference: complete, linked, valid, escaped, and written whole or not at all."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg import registry
from rlreg.errors import FileFormatError, UnknownNameError
from rlreg.migrations import Drop, Keep, Migration, Move, Rename, Split
from rlreg.reference import builder, html, markdown
from rlreg.reference.build import MARKER, build_reference
from rlreg.reference.guides import Guide, shelves
from rlreg.reference.record import record_of
from rlreg.reference.shapes import number_text, shape_of
from rlreg.registry import PresetRecord, Record

pytestmark = pytest.mark.light


class Probe(rlreg.LearnableConfig):
    r"""A probe | with <b>odd</b> `code` in its summary.

    Paper: Doe: On <b>Probes</b>, 2020,
    arXiv:2001.00001

    The loss is, with :class:`Probe` and ``a < b``::

        L = (r + gamma * v' - q)^2 <script>alert(1)</script>

    And *more* words_with_underscores, :math:`\alpha < \beta`, and

    .. math::

        \frac{a}{b} < 1

    .. math:: \left( <x>
    """

    regime: ClassVar[str] = "offline"
    field_groups: ClassVar = {"Odd ones": ("pattern",)}
    migrations: ClassVar = (
        Migration(1, (Rename("discount", "gamma"), Drop("old", "it had <no> effect"))),
        Migration(2, (Keep("gamma", 0.9), Move("a", "b.c"), Split("xy", ("x", "y")))),
    )
    type: Literal["probe"] = "probe"
    schema_version: Literal[3] = 3
    gamma: float = Field(
        0.99, gt=0, le=1, description="Discount <i>x</i> | pipe. Default: paper, table 3."
    )
    pattern: str = Field("a", pattern="^(a|b)$", description="A word.")
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()
    pairs: tuple[tuple[rlreg.EncoderFactory, rlreg.EncoderFactory], ...] = Field(
        (), max_length=4, description="Pairs of encoders. Default: ours."
    )


class TwinA(rlreg.LearnableConfig):
    """One twin."""

    regime: ClassVar[str] = "offline"
    type: Literal["twin"] = "twin"


class TwinB(rlreg.LearnableConfig):
    """The other twin."""

    regime: ClassVar[str] = "online"
    type: Literal["twin"] = "twin"


class Bare(rlreg.ObservationScaler):
    """A component without fields."""

    type: Literal["bare"] = "bare"


@pytest.fixture
def site(tmp_path):
    """Builds a reference with odd classes, two claims of one name and two presets."""
    registry.list_presets()
    rlreg.register_learnable(Probe)
    rlreg.register_component(Bare)
    held = registry._registry
    for cls, owner in ((TwinA, "Case.A"), (TwinB, "case-b")):
        held.add(Record("learnable", "twin", cls, owner, "1.0"))
    for name, settings in (("one", {"learnable.gamma": 0.5}), ("two", {"train.n_steps": 7})):
        preset = rlreg.Preset(f"probe/{name}", f"The {name}.", "ours", settings)
        held.presets[preset.id] = PresetRecord(preset, "local", "")
    build_reference(tmp_path / "ref")
    yield tmp_path / "ref"
    registry.forget_local(["probe", "bare"])
    del held.records["learnable", "twin"]
    del held.presets["probe/one"], held.presets["probe/two"]


class Links(HTMLParser):
    """Collects links, ids and everything that would load something."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.loads, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        self.loads += [found[key] for key in ("src", "srcset", "data") if key in found]
        if tag in ("link", "script", "iframe", "object", "embed"):
            self.loads.append(tag)


def test_there_is_a_page_for_every_learnable_component_and_kind(site):
    for info in rlreg.list_learnables():
        if info.name != "twin":
            assert (site / f"learnables/{info.name}.html").exists()
            assert (site / f"learnables/{info.name}.md").exists()
    for info in rlreg.list_components():
        assert (site / f"components/{info.kind}.{info.name}.html").exists()
        assert (site / f"kinds/{info.kind}.html").exists()
    assert (site / "run.html").exists()
    assert (site / "index.html").exists()


def test_a_name_claimed_twice_has_two_pages(site):
    assert "One twin." in (site / "learnables/case-a.twin.html").read_text()
    assert "The other twin." in (site / "learnables/case-b.twin.html").read_text()
    index = (site / "index.html").read_text()
    assert "Case.A/twin" in index
    assert "case-b/twin" in index


def test_a_long_page_lists_its_sections(site):
    page = (site / "learnables/probe.html").read_text()
    contents = page[page.index('aria-label="On this page"') : page.index('class="article"')]
    listed = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', contents)
    assert listed == re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', page)
    assert len(listed) > 2
    assert "On this page" not in (site / "index.html").read_text()


def test_guides_stand_by_what_they_are_for():
    names = ["rlreg", "notation", "adr/0001", "tutorial-x", "writing-a-plugin", "more-notes/a"]
    guides = [Guide(Path(f"{name}.md"), f"guides/{name}", name, "") for name in names]
    assert [(title, [guide.title for guide in items]) for title, items in shelves(guides)] == [
        ("Tutorials", ["tutorial-x", "writing-a-plugin"]),
        ("Guides", ["rlreg", "notation"]),
        ("Decisions", ["adr/0001"]),
        ("More notes", ["more-notes/a"]),
    ]


def test_every_html_link_leads_to_a_page_and_an_id_that_exist(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    n_links = 0
    for path, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), path
        for link in page.links:
            if link.startswith("https://arxiv.org/abs/"):
                continue
            name, _, fragment = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.exists(), f"{path}: {link}"
            if fragment:
                assert fragment in pages[target].ids, f"{path}: {link}"
            n_links += 1
    assert n_links > 100


def test_every_markdown_link_leads_to_a_page(site):
    n_links = 0
    for path in site.rglob("*.md"):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)]+)\)", text):
            if link.startswith("https://arxiv.org/abs/"):
                continue
            assert (path.parent / link).exists(), f"{path}: {link}"
            n_links += 1
    assert n_links > 100


def test_html_is_valid(site):
    html5lib = pytest.importorskip("html5lib")
    for path in site.rglob("*.html"):
        html5lib.HTMLParser(strict=True).parse(path.read_text())


def test_pages_load_nothing_and_run_nothing(site):
    pages = set(site.rglob("*.html")) - {site / "builder.html"}
    for path in pages:
        text = path.read_text()
        assert Links(text).loads == [], path
        assert "url(" not in text
        assert "@import" not in text


def test_pages_are_accessible_in_structure(site):
    for path in site.rglob("*.html"):
        text = path.read_text()
        page = Links(text)
        assert '<html lang="en">' in text
        assert page.tags.count("h1") == page.tags.count("main") == page.tags.count("title") == 1
        assert page.tags.count("caption") == page.tags.count("table")
        assert not re.search(r"<th(?! scope=)[ >]", text)
        levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
        assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), path


def test_what_an_author_writes_is_escaped(site):
    page = (site / "learnables/probe.html").read_text()
    assert "<script>" not in page
    assert "<i>x</i>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<code>a &lt; b</code>" in page
    assert "<code>code</code>" in page
    text = (site / "learnables/probe.md").read_text()
    assert "Discount \\<i\\>x\\</i\\> \\| pipe." in text
    assert "words\\_with\\_underscores" in text


def test_markdown_tables_have_as_many_cells_in_every_row(site):
    for path in site.rglob("*.md"):
        width = None
        for line in path.read_text().splitlines():
            if not line.startswith("|"):
                width = None
                continue
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert width in (None, cells), f"{path}: {line}"
            width = cells


def test_a_learnable_page_has_fields_presets_and_examples(site):
    page = (site / "learnables/probe.md").read_text()
    assert "| `gamma` | number | `0 < x <= 1` | `0.99` | paper, table 3 |" in page
    assert "[encoder](../kinds/encoder.md)" in page
    assert "| Setting | Default | `probe/one` | `probe/two` |" in page
    assert "| `learnable.gamma` | `0.99` | `0.5` |  |" in page
    assert "| `train.n_steps` |  |  | `7` |" in page
    assert 'rlreg.create("probe", gamma=0.99)' in page
    assert "rlreg train probe.yaml --set learnable.gamma=0.99" in page
    json_text = re.search(r"```json\n(.*?)```", page, re.DOTALL)[1]
    assert rlreg.load_config(json.loads(json_text)) == Probe()


def test_yaml_examples_are_valid_configs(site, tmp_path):
    for info in [*rlreg.list_learnables()]:
        if info.name == "twin":
            continue
        page = (site / f"learnables/{info.name}.md").read_text()
        text = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]
        (tmp_path / "x.yaml").write_text(text)
        run = rlreg.load_config(str(tmp_path / "x.yaml"))
        assert run.learnable == rlreg.make_config(info.name)


def test_kinds_and_members_link_to_one_another(site):
    kind = Links((site / "kinds/encoder.html").read_text()).links
    assert "../components/encoder.vector.html" in kind
    assert "../learnables/probe.html#Probe-encoder" not in kind
    assert "../learnables/probe.html#probe-encoder" in kind
    assert "../learnables/probe.html#probe-pairs" in kind
    member = Links((site / "components/encoder.vector.html").read_text()).links
    assert "../kinds/encoder.html" in member
    assert "../learnables/probe.html#probe-encoder" in member
    assert "no fields" not in (site / "components/encoder.vector.html").read_text()
    assert "schema_version" not in (site / "components/observation_scaler.bare.html").read_text()


# --- papers, equations, groups, history ---------------------------------------------------------


def test_a_paper_is_cited_and_linked_by_its_number(site):
    page = (site / "learnables/probe.html").read_text()
    cited = "Doe: On &lt;b&gt;Probes&lt;/b&gt;, 2020, arXiv:2001.00001"
    assert f'<a href="https://arxiv.org/abs/2001.00001">{cited}</a>' in page
    assert "Paper: Doe" not in page
    assert "(https://arxiv.org/abs/2001.00001)" in (site / "learnables/probe.md").read_text()
    assert record_of(Probe).as_json()["paper"].startswith("Doe: On")


def test_equations_become_mathml_and_a_faulty_one_stays_as_it_is(site):
    page = (site / "learnables/probe.html").read_text()
    assert page.count("<math ") == 2
    assert 'display="block"' in page
    assert "<mfrac>" in page
    assert ".. math::" not in page
    assert "<x>" not in page
    assert "&lt;x&gt;" in page
    text = (site / "learnables/probe.md").read_text()
    assert "```math\n\\frac{a}{b} < 1\n```" in text
    assert "$`\\alpha < \\beta`$" in text


def test_fields_stand_in_groups(site):
    groups = {title: [item.name for item in items]
              for title, items in record_of(Probe).groups.items()}  # fmt: skip
    assert groups == {
        "Odd ones": ["pattern"],
        "Algorithm": ["gamma"],
        "Networks": ["encoder", "pairs"],
        "Format": ["schema_version"],
    }
    page = (site / "learnables/probe.html").read_text()
    assert '<h3 id="group-odd-ones">Odd ones</h3>' in page


def test_the_history_of_a_schema_is_told(site):
    page = (site / "learnables/probe.html").read_text()
    assert page.index("Version 3") < page.index("Version 2")
    assert "<code>discount</code> is now called <code>gamma</code>." in page
    assert "<code>old</code> is gone: it had &lt;no&gt; effect." in page
    assert "<code>gamma</code> has a new default; older files keep <code>0.9</code>." in page
    assert "<code>a</code> has moved to <code>b.c</code>." in page
    assert "<code>xy</code> is now <code>x</code>, <code>y</code>." in page
    assert "Version 2: `discount` is now" in (site / "learnables/probe.md").read_text()


# --- guides and the builder ---------------------------------------------------------------------

GUIDE = """# A *guide* with `code`

See [the other](sub/other.md#two-words), [that section](#tables), [a site](https://example.org/x),
[a file](../src/x.py) and ![a picture](p.png). <script>alert(1)</script>

### Skipped a level

## Tables

| a | |
|---|---|
| 1 | <b> |

```python
x < 1
```

```math
x^2
```

# Second title
"""


def test_guides_become_pages_with_links_between_them(tmp_path, site):
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "Guide One.md").write_text(GUIDE)
    (docs / "sub/other.md").write_text("# Other\n\n## Two words\n\n[back](<../Guide One.md>)\n")
    (tmp_path / "plug").mkdir()
    (tmp_path / "plug/README.md").write_text("# Plug\n")
    build_reference(tmp_path / "out", guides=[docs, tmp_path / "plug/README.md"])
    page = (tmp_path / "out/guides/guide-one.html").read_text()
    assert "<h1>A guide with code</h1>" in page
    assert '<a href="sub/other.html#two-words">the other</a>' in page
    assert '<a href="#tables">that section</a>' in page
    assert '<a href="https://example.org/x">a site</a>' in page
    assert "a file and a picture." in page
    assert "<script>" not in page
    assert "<mrow>" in page
    levels = [int(tag[1]) for tag in Links(page).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels == [1, 2, 2, 2]
    assert "../guide-one.html" in (tmp_path / "out/guides/sub/other.html").read_text()
    index = Links((tmp_path / "out/index.html").read_text())
    names = ("guide-one", "sub/other", "plug")
    assert {f"guides/{name}.html" for name in names} <= set(index.links)
    html5lib = pytest.importorskip("html5lib")
    for path in (tmp_path / "out/guides").rglob("*.html"):
        html5lib.HTMLParser(strict=True).parse(path.read_text())


def test_guides_that_cannot_be_read_or_share_a_page_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        build_reference(tmp_path / "out", guides=[tmp_path / "none.md"])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.md").write_text("# X\n")
    with pytest.raises(FileFormatError, match="another file has the page guides/x"):
        build_reference(tmp_path / "out", guides=[tmp_path / "a", tmp_path / "b"])
    assert not (tmp_path / "out").exists()


def with_bundle(monkeypatch, folder):
    """Stands in for what `make builder` makes, or for its absence."""
    folder.mkdir()
    for name in builder.FILES:
        (folder / "builder_dist").mkdir(exist_ok=True)
        (folder / "builder_dist" / name).write_text(f"of {name}")
    monkeypatch.setattr(builder, "files", lambda _: folder)


def test_the_builder_page_carries_schemas_presets_and_groups(site, tmp_path, monkeypatch):
    with_bundle(monkeypatch, tmp_path / "bundle")
    build_reference(tmp_path / "out", learnables=["probe"])
    page = (tmp_path / "out/builder.html").read_text()
    assert Links(page).loads == ["link", "builder/builder.js", "script", "script"]
    for name in builder.FILES:
        assert (tmp_path / "out/builder" / name).read_text() == f"of {name}"
    data = json.loads(re.search(r'id="builder-data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["schema"] == rlreg.json_schema("run")
    (probe,) = data["learnables"]
    assert probe["name"] == "probe"
    assert [item["id"] for item in probe["presets"]] == ["probe/one", "probe/two"]
    assert probe["groups"][0] == {"title": "Odd ones", "fields": ["pattern"]}
    pytest.importorskip("html5lib").HTMLParser(strict=True).parse(page)


def test_without_its_script_the_builder_page_says_how_to_make_it(site, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "files", lambda _: tmp_path / "nothing")
    build_reference(tmp_path / "out")
    page = (tmp_path / "out/builder.html").read_text()
    assert Links(page).loads == []
    assert "<code>make builder docs</code>" in page
    assert not (tmp_path / "out/builder").exists()


# --- writing ------------------------------------------------------------------------------------


def test_a_second_build_replaces_the_first_and_nothing_else(site):
    before = sorted(path.name for path in site.rglob("*"))
    assert "probe.html" in before
    registry.forget_local(["probe"])
    build_reference(site)
    assert not (site / "learnables/probe.html").exists()
    rlreg.register_learnable(Probe)
    build_reference(site)
    assert sorted(path.name for path in site.rglob("*")) == before
    assert [path.name for path in site.parent.iterdir()] == ["ref"]


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, site):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(FileFormatError, match="not empty and not written by"):
        build_reference(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (site / "notes.txt").write_text("keep")
    with pytest.raises(FileFormatError, match=r"holds 'notes\.txt', which no build wrote"):
        build_reference(site)
    assert (site / "notes.txt").read_text() == "keep"
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileFormatError, match="is a file"):
        build_reference(tmp_path / "file")


def test_a_build_that_fails_leaves_the_old_reference(site, monkeypatch):
    before = (site / "index.html").read_text()

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(FileFormatError, match="No space left on device"):
            build_reference(site)
    assert (site / "index.html").read_text() == before
    assert [path.name for path in site.parent.iterdir()] == ["ref"]


def test_only_the_asked_learnables_get_pages(tmp_path, site):
    written = build_reference(tmp_path / "one", learnables=["probe"])
    assert [path.name for path in written if path.parent.name == "learnables"] == [
        "probe.html",
        "probe.md",
    ]
    assert MARKER in {path.name for path in (tmp_path / "one").iterdir()}
    with pytest.raises(UnknownNameError, match="unknown learnable 'prob'"):
        build_reference(tmp_path / "two", learnables=["prob"])
    assert not (tmp_path / "two").exists()


def test_the_same_configs_give_the_same_bytes(tmp_path, site):
    build_reference(tmp_path / "again")
    for path in site.rglob("*.*"):
        assert (tmp_path / "again" / path.relative_to(site)).read_bytes() == path.read_bytes()


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "kind", "text"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number", "0 < x <= 1"),
        ({"type": "integer", "minimum": 1}, "integer", "1 <= x"),
        ({"type": "number", "exclusiveMaximum": 2.5}, "number", "x < 2.5"),
        ({"type": "integer", "multipleOf": 4}, "integer", "multiple of 4"),
        ({"enum": ["a", "off", 3]}, "choice", 'a, "off", 3'),
        ({"const": 1, "type": "integer"}, "integer", "1"),
        ({"type": "boolean"}, "boolean", ""),
        (
            {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]},
            "number or null",
            "0 <= x",
        ),
        (
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 3},
            "list of integer",
            "at most 3 items, each 1 <= x",
        ),
        (
            {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]},
            "[number, number]",
            "",
        ),
        ({"$ref": "#/$defs/EncoderFactory"}, "encoder", ""),
    ],
)
def test_a_schema_is_put_into_words(schema, kind, text):
    shape = shape_of(schema)
    assert (shape.type, shape.range) == (kind, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(10**12, "1e12"), (65_536, "65536"), (2**32 - 1, "4294967295"), (1.0, "1"), (0.1, "0.1"),
     (1e30, "1e30"), (-1e9, "-1e9"), (1_500_000, "1500000")],
)  # fmt: skip
def test_bounds_are_written_as_a_person_would(value, text):
    assert number_text(value) == text
    assert float(text) == value


def test_source_and_description_are_told_apart(local_names):
    @rlreg.register_learnable
    class Sources(rlreg.LearnableConfig):
        """Sources."""

        regime: ClassVar[str] = "offline"
        type: Literal["sources"] = "sources"
        a: float = Field(0.5, description="What a does. Default: paper, eq. 3; ours is 0.1.")
        b: float = Field(0.5, description="Default: ours.")
        c: float = Field(0.5, description="The Default is odd.")
        d: Annotated[int, Field(ge=0, le=5)] = 1

    fields = {item.name: item for item in record_of(Sources).fields}
    assert (fields["a"].description, fields["a"].source) == (
        "What a does.",
        "paper, eq. 3; ours is 0.1",
    )
    assert (fields["b"].description, fields["b"].source) == ("", "ours")
    assert (fields["c"].description, fields["c"].source) == ("The Default is odd.", "")
    assert (fields["d"].description, fields["d"].range) == ("", "0 <= x <= 5")


def test_code_spans_survive_backticks_and_pipes():
    assert markdown.code("a`b|c") == "`` a`b\\|c ``"
    assert str(html.inline("x ``a`` <y>")) == "x <code>a</code> &lt;y&gt;"
