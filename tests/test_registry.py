"""Names: resolved by one rule, suggested when missing, never dependent on the order of paths."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

import pytest
from pydantic import Field

import rlreg
from rlreg import registry
from rlreg.errors import (
    AmbiguousNameError,
    DuplicateNameError,
    PluginError,
    RegistrationError,
    UnknownNameError,
)
from rlreg.plugins import PluginInfo
from rlreg.registry import Record, Registry

pytestmark = [pytest.mark.light, pytest.mark.usefixtures("local_names")]


class OneConfig(rlreg.LearnableConfig):
    """The first one."""

    regime: ClassVar[str] = "offline"
    type: Literal["one"] = "one"

    def create(self, device="auto"):
        return ("made", self, device)


class OtherConfig(rlreg.LearnableConfig):
    """Another class with the same tag."""

    regime: ClassVar[str] = "offline"
    type: Literal["one"] = "one"


def filled(*claims: tuple[str, str]) -> Registry:
    """A registry in which each (distribution, name) is a learnable."""
    built = Registry(is_complete=True)
    for distribution, name in claims:
        cls = type(rlreg.LearnableConfig)(
            "Made",
            (rlreg.LearnableConfig,),
            {"__doc__": "X.", "__module__": __name__, "__qualname__": f"Made{distribution}"},
        )
        built.add(Record("learnable", name, cls, distribution, "1"))
    return built


class TestNames:
    def test_bare_name_of_a_single_claim(self):
        assert filled(("acme", "x")).resolve("learnable", "x").id == "acme/x"

    @pytest.mark.parametrize("order", [1, -1])
    def test_two_claims_are_ambiguous_whatever_their_order(self, order):
        built = filled(*[("dist-b", "x"), ("dist-a", "x")][::order])
        with pytest.raises(AmbiguousNameError, match="'dist-a/x' or 'dist-b/x'"):
            built.resolve("learnable", "x")
        assert built.resolve("learnable", "dist-a/x").distribution == "dist-a"
        assert built.resolve("learnable", "dist-b/x").distribution == "dist-b"

    def test_distribution_named_after_the_name_owns_it(self):
        built = filled(("acme", "x"), ("rlreg-x", "x"))
        assert built.resolve("learnable", "x").distribution == "rlreg-x"
        assert built.resolve("learnable", "acme/x").distribution == "acme"

    def test_prefix_may_be_left_out_unless_a_distribution_has_the_short_name(self):
        assert filled(("rlreg-x", "x")).resolve("learnable", "x/x").distribution == "rlreg-x"
        built = filled(("rlreg-x", "x"), ("x", "y"))
        with pytest.raises(UnknownNameError):
            built.resolve("learnable", "x/x")

    @pytest.mark.parametrize("spelling", ["My.Dist", "my-dist", "MY_DIST", "my--dist"])
    def test_distributions_compare_in_normal_form(self, spelling):
        assert filled(("My_Dist", "x")).resolve("learnable", f"{spelling}/x").name == "x"

    def test_unknown_name_lists_the_nearest(self):
        with pytest.raises(UnknownNameError, match="did you mean 'impala'"):
            filled(("a", "impala"), ("a", "iql")).resolve("learnable", "impalla")
        with pytest.raises(UnknownNameError, match="there is impala, iql"):
            filled(("a", "impala"), ("a", "iql")).resolve("learnable", "zzz")

    def test_name_of_a_broken_plugin_is_explained(self):
        built = filled(("a", "y"))
        built.plugins = [
            PluginInfo("rlreg-x", "2.0", "x", "m", "broken", "ImportError: no foo", "install foo")
        ]
        with pytest.raises(PluginError, match=r"rlreg-x 2.0 is broken: ImportError: no foo"):
            built.resolve("learnable", "x")


class TestRegistration:
    def test_decorator_returns_the_class_and_gives_a_local_id(self):
        assert rlreg.register_learnable(OneConfig) is OneConfig
        (info,) = [each for each in rlreg.list_learnables() if each.name == "one"]
        assert (info.id, info.summary, info.regime) == ("local/one", "The first one.", "offline")
        assert rlreg.get_config_class("one") is rlreg.get_config_class("local/one") is OneConfig

    def test_same_object_again_is_silent(self):
        rlreg.register_learnable(OneConfig)
        rlreg.register_learnable(OneConfig)

    def test_another_object_under_the_name_raises_and_changes_nothing(self):
        rlreg.register_learnable(OneConfig)
        with pytest.raises(DuplicateNameError, match=r"'one' is already registered.*OneConfig"):
            rlreg.register_learnable(OtherConfig)
        assert rlreg.get_config_class("one") is OneConfig

    def test_tag_of_core_is_taken(self):
        rlreg.list_components()

        class Mine(rlreg.EncoderFactory):
            """Mine."""

            type: Literal["vector"] = "vector"

        with pytest.raises(DuplicateNameError):
            rlreg.register_component(Mine)

    def test_registering_first_does_not_hide_the_plugins(self, run_python, make_plugin):
        site = make_plugin("acme", LITE_PLUGIN)
        code = (
            "import rlreg\n"
            "from typing import ClassVar, Literal\n"
            "@rlreg.register_learnable\n"
            "class A(rlreg.LearnableConfig):\n"
            "    'A.'\n"
            "    regime: ClassVar[str] = 'offline'\n"
            "    type: Literal['mine'] = 'mine'\n"
            "print([each.name for each in rlreg.list_learnables()])"
        )
        out = run_python(code, path=[site])
        assert "'lite'" in out
        assert "'mine'" in out


LITE_PLUGIN = '''
from typing import ClassVar, Literal
import rlreg
from pydantic import Field

class LiteConfig(rlreg.LearnableConfig):
    """Lite."""
    regime: ClassVar[str] = "offline"
    type: Literal["lite"] = "lite"
    rate: float = Field(default=0.1, gt=0, le=1)

    def create(self, device="auto"):
        return ("lite", device)

@rlreg.hookimpl
def rlreg_learnables():
    return [LiteConfig]
'''


class TestCreate:
    def test_id_config_and_mapping_create_the_same(self):
        rlreg.register_learnable(OneConfig)
        made = [rlreg.create(form) for form in ("one", OneConfig(), {"type": "one"})]
        assert made == [("made", OneConfig(), "auto")] * 3

    def test_seed_or_compile_for_something_that_is_no_learnable_is_an_error(self):
        rlreg.register_learnable(OneConfig)
        for extra in ({"seed": 0}, {"compile": "off"}):
            with pytest.raises(rlreg.ConfigError, match=r"no rlreg\.Learnable"):
                rlreg.create("one", **extra)

    def test_device_is_checked_before_anything_is_made(self):
        rlreg.register_learnable(OneConfig)
        with pytest.raises(rlreg.RlregError, match="cudda"):
            rlreg.create("one", device="cudda")

    @pytest.mark.parametrize("form", [None, 3, ["one"], OneConfig])
    def test_anything_else_is_refused(self, form):
        with pytest.raises(rlreg.ConfigError, match="expected an id, a config or a mapping"):
            rlreg.create(form)

    def test_unregistered_config_is_refused(self):
        with pytest.raises(RegistrationError, match="not registered"):
            rlreg.create(OneConfig())


class TestListing:
    def test_core_alone_has_its_own_components_only(self, run_python):
        code = (
            "import rlreg, json\n"
            "print(json.dumps([c.kind + '.' + c.name for c in rlreg.list_components()]))"
        )
        names = json.loads(run_python(code, env={"RLREG_ONLY_PLUGINS": "none"}))
        assert {"encoder.default", "encoder.vector", "encoder.pixel", "optimizer.adam_w"} <= {
            *names
        }
        assert not {"encoder.simba", "encoder.impala_resnet", "reward_scaler.return"} & {*names}
        assert not [name for name in names if name.startswith("engine.")]

    def test_unknown_kind_suggests_the_nearest(self):
        with pytest.raises(UnknownNameError, match="did you mean 'encoder'"):
            rlreg.list_components("encoders")

    def test_threads_that_look_up_while_others_register_see_no_error(self):
        import threading

        errors = []

        def look():
            try:
                for _ in range(200):
                    rlreg.make_config("one")
                    rlreg.list_learnables()
            except Exception as error:  # noqa: BLE001 - whatever it is, the test reports it
                errors.append(error)

        rlreg.register_learnable(OneConfig)
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for index in range(50):
            registry._registry.add(Record("learnable", f"n{index}", OtherConfig, "x", "1"))
        for thread in threads:
            thread.join()
        for index in range(50):
            registry._registry.records.pop(("learnable", f"n{index}"))
        assert errors == []


def test_a_cell_of_a_notebook_may_be_run_again():
    cell = '''
class TinyConfig(rlreg.LearnableConfig):
    """Tiny."""

    regime: ClassVar[str] = "offline"
    type: Literal["tiny-cell"] = "tiny-cell"
    width: int = Field({default}, ge=1, le=9)


rlreg.register_learnable(TinyConfig)
'''
    names = {"rlreg": rlreg, "ClassVar": ClassVar, "Literal": Literal, "Field": Field}
    names["__name__"] = "__main__"

    def run(text):
        exec(compile(text, "<cell>", "exec", dont_inherit=True), dict(names))

    for default in (3, 3, 4):
        run(cell.format(default=default))
        assert rlreg.make_config("tiny-cell").width == default
    other = cell.format(default=5).replace("TinyConfig", "OtherConfig")
    with pytest.raises(DuplicateNameError, match="already registered by local"):
        run(other)
