"""A config is a contract: frozen, complete, exact, and honest about everything that is wrong."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, ValidationError

import rlreg
from rlreg.components import Adam, PixelEncoder, VectorEncoder
from rlreg.config import ActionSpace
from rlreg.errors import nearest
from rlreg.open_union import MAX_DEPTH, validate

pytestmark = [pytest.mark.light, pytest.mark.usefixtures("local_names")]

Width = Annotated[int, Field(ge=1, le=4096)]


class SampleConfig(rlreg.LearnableConfig):
    """A sample."""

    regime: ClassVar[str] = "offline"
    type: Literal["sample"] = "sample"
    rate: float = Field(default=3e-4, gt=0, le=1, description="Rate. Default: ours.")
    count: int = Field(default=3, ge=1, le=10, description="Count. Default: ours.")
    flag: bool = Field(default=False, description="Flag. Default: ours.")
    mode: Literal["a", "b", 3, True] = Field(default="a", description="Mode. Default: ours.")
    units: tuple[Width, ...] = Field(default=(3,), min_length=1, max_length=5)
    maybe: Annotated[float, Field(ge=0, le=1)] | None = None
    encoder: rlreg.EncoderFactory = rlreg.make_encoder_field()
    scaler: rlreg.ObservationScaler | None = rlreg.make_observation_scaler_field()
    optimizer: rlreg.OptimizerFactory = rlreg.make_optimizer_field()
    more: tuple[tuple[str, rlreg.EncoderFactory], ...] = Field(default=(), max_length=8)


@pytest.fixture
def sample(local_names):
    return rlreg.register_learnable(SampleConfig)


def problems(**overrides):
    with pytest.raises(rlreg.ConfigError) as caught:
        rlreg.make_config("sample", **overrides)
    return [str(problem) for problem in caught.value.problems]


class TestExactness:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("count", True), ("count", "3"), ("count", 3.5), ("count", None), ("count", 11),
            ("count", 0), ("count", math.inf), ("count", 10**400), ("rate", "0.1"), ("rate", True),
            ("rate", 0), ("rate", math.nan), ("rate", math.inf), ("rate", [0.1]), ("flag", 1),
            ("flag", "true"), ("mode", "c"), ("mode", 1), ("mode", 3.5), ("units", []),
            ("units", [0]), ("units", ["3"]), ("units", [True]), ("units", 3), ("units", "33"),
            ("maybe", -0.1), ("maybe", "0"), ("encoder", None), ("encoder", "vector"),
            ("encoder", {}), ("encoder", {"type": 3}), ("scaler", {"type": "vector"}),
            ("schema_version", 2), ("schema_version", "1"), ("schema_version", True),
        ],
    )  # fmt: skip
    def test_value_of_another_type_or_range_is_refused(self, sample, field, value):
        assert len(problems(**{field: value})) == 1

    def test_integral_float_is_an_integer_and_integer_is_a_float(self, sample):
        config = rlreg.make_config("sample", count=3.0, rate=1, mode=3.0)
        assert (type(config.count), type(config.rate), config.mode) == (int, float, 3)

    def test_true_and_one_stay_apart_in_a_literal(self, sample):
        assert rlreg.make_config("sample", mode=True).mode is True
        assert problems(mode=1)

    def test_numpy_numbers_become_python_numbers(self, sample):
        numpy = pytest.importorskip("numpy", reason="numpy comes with the torch extra")
        config = rlreg.make_config("sample", count=numpy.int64(4), rate=numpy.float32(0.5))
        assert (type(config.count), type(config.rate)) == (int, float)
        assert problems(count=numpy.bool_(True))


class TestFrozen:
    def test_assignment_is_refused(self, sample):
        with pytest.raises(ValidationError, match="frozen"):
            rlreg.make_config("sample").rate = 0.5

    def test_model_copy_validates(self, sample):
        config = rlreg.make_config("sample")
        assert config.model_copy(update={"rate": 0.5}).rate == 0.5
        with pytest.raises(ValidationError):
            config.model_copy(update={"rate": -1})
        with pytest.raises(ValidationError):
            config.model_copy(update={"rat": 0.5})

    def test_model_construct_validates(self, sample):
        with pytest.raises(ValidationError):
            SampleConfig.model_construct(rate=-1)

    def test_copy_is_refused_and_deepcopy_is_the_same_config(self, sample):
        config = rlreg.make_config("sample")
        with pytest.raises(TypeError, match="model_copy"):
            config.copy()
        assert copy.deepcopy(config) is config
        assert copy.copy(config) is config

    def test_pickle_goes_through_validation(self, sample):
        config = rlreg.make_config("sample", encoder={"type": "vector", "hidden_units": [7]})
        assert pickle.loads(pickle.dumps(config)) == config
        rebuild, (cls, data) = config.__reduce__()
        with pytest.raises(ValidationError):
            rebuild(cls, {**data, "rate": -1})

    def test_equal_configs_have_equal_hashes(self, sample):
        one, two = rlreg.make_config("sample", count=3), rlreg.make_config("sample")
        assert one == two
        assert hash(one) == hash(two)

    def test_what_python_cannot_close_is_caught_at_create(self, sample):
        config = rlreg.make_config("sample")
        object.__setattr__(config, "__dict__", {**config.__dict__, "rate": -1})
        with pytest.raises(rlreg.ConfigError, match="rate"):
            rlreg.create(config)


class TestReports:
    def test_all_problems_come_at_once_with_paths(self, sample):
        found = problems(
            rat=1, count=99, encoder={"type": "vector", "hidden_units": [3, 0], "dropot": 0.1}
        )
        assert found == [
            "count = 99: must be <= 10",
            "encoder.hidden_units[1] = 0: must be >= 1",
            "encoder.dropot: no such key; did you mean 'dropout_rate'?",
            "rat: no such key; did you mean 'rate'?",
        ]

    def test_wrong_value_under_one_tag_reports_that_branch_only(self, sample):
        assert problems(encoder={"type": "pixel", "feature_size": "x"}) == [
            "encoder.feature_size = 'x': expected a number"
        ]

    def test_wrong_tag_suggests_the_nearest(self, sample):
        assert problems(encoder={"type": "vectr"}) == [
            "encoder.type = 'vectr': unknown encoder 'vectr'; did you mean 'vector'?"
        ]

    def test_key_of_a_sibling_is_pointed_out(self, sample):
        (found,) = problems(encoder={"type": "vector", "feature_size": 3})
        assert found.startswith("encoder.feature_size: no such key; 'feature_size' is a key of ")
        assert "'pixel'" in found
        assert found.endswith("not of 'vector'")

    def test_unknown_learnable_suggests_the_nearest(self, sample):
        with pytest.raises(LookupError, match="did you mean 'sample'"):
            rlreg.create("smaple")

    def test_error_survives_pickling(self, sample):
        with pytest.raises(rlreg.ConfigError) as caught:
            rlreg.make_config("sample", rat=1)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_a_mapping_needs_its_tag(self, sample):
        with pytest.raises(rlreg.ConfigError, match="`type`"):
            rlreg.create({"rate": 0.1})
        with pytest.raises(rlreg.ConfigError, match="type: is required"):
            validate(SampleConfig, {"rate": 0.1})


class TestOpenUnion:
    def test_member_registered_later_validates_dumps_and_reloads(self, sample):
        before = rlreg.json_schema("sample")

        @rlreg.register_component
        class LateEncoder(rlreg.EncoderFactory):
            """Late."""

            type: Literal["late"] = "late"
            depth: int = Field(default=2, ge=1, le=9)
            inner: rlreg.EncoderFactory = rlreg.make_encoder_field(default=VectorEncoder())

        config = rlreg.make_config("sample", encoder={"type": "late", "depth": 4})
        assert type(config.encoder) is LateEncoder
        dumped = config.model_dump(mode="json")
        assert dumped["encoder"]["type"] == "late"
        again = validate(SampleConfig, dumped)
        assert type(again.encoder) is LateEncoder
        assert again == config
        assert "late" not in before["$defs"]["EncoderFactory"]["properties"]["type"]["enum"]
        after = rlreg.json_schema("sample")
        assert "late" in after["$defs"]["EncoderFactory"]["properties"]["type"]["enum"]

    def test_instances_keep_their_class(self, sample):
        config = SampleConfig(encoder=PixelEncoder(feature_size=9), more=(("x", VectorEncoder()),))
        assert config.encoder == PixelEncoder(feature_size=9)
        assert type(config.more[0][1]) is VectorEncoder

    def test_instance_of_another_kind_is_refused(self, sample):
        assert "expected an encoder, got an optimizer" in problems(encoder=Adam())[0]

    def test_unregistered_subclass_is_refused_since_it_could_not_be_read_back(self, sample):
        class Stranger(rlreg.EncoderFactory):
            """Stranger."""

            type: Literal["vector"] = "vector"

        assert "not registered" in problems(encoder=Stranger())[0]

    def test_dump_keeps_every_tag(self, sample):
        config = rlreg.make_config("sample", scaler={"type": "standard"})
        for dumped in (
            config.model_dump(exclude_defaults=True),
            config.model_dump(exclude_unset=True),
            validate(SampleConfig, config.model_dump()).model_dump(exclude_defaults=True),
        ):
            assert dumped["type"] == "sample"
            assert dumped["scaler"]["type"] == "standard"

    def test_base_class_reads_any_learnable(self, sample):
        config = validate(rlreg.LearnableConfig, {"type": "sample", "count": 7})
        assert type(config) is SampleConfig

    def test_a_kind_cannot_be_instantiated(self):
        with pytest.raises(TypeError, match="is a kind"):
            rlreg.EncoderFactory()

    def test_too_deep_nesting_is_an_error_not_a_crash(self, sample):
        @rlreg.register_component
        class Nest(rlreg.EncoderFactory):
            """Nest."""

            type: Literal["nest"] = "nest"
            inner: rlreg.EncoderFactory | None = None

        document: dict = {"type": "nest"}
        for _ in range(MAX_DEPTH + 2):
            document = {"type": "nest", "inner": document}
        assert "at most 32 deep" in problems(encoder=document)[0]
        cyclic: dict = {"type": "nest"}
        cyclic["inner"] = cyclic
        assert "at most 32 deep" in problems(encoder=cyclic)[0]


def test_get_type_and_action_space():
    assert SampleConfig.get_type() == "sample"
    assert {space.name for space in ActionSpace} == {"CONTINUOUS", "DISCRETE", "BOTH"}
    with pytest.raises(TypeError):
        rlreg.LearnableConfig.get_type()


class TestRunConfig:
    def test_file_form_round_trips(self, sample):
        data = {
            "learnable": {"type": "sample"},
            "env": {
                "id": "CartPole-v1",
                "kwargs": {"a": [1, None]},
                "register": "minatar:register",
            },
            "device": ["cuda:0", "cpu"],
        }
        run = validate(rlreg.RunConfig, data)
        assert run.env.register_with == "minatar:register"
        assert validate(rlreg.RunConfig, run.model_dump(mode="json")) == run

    @pytest.mark.parametrize("value", [math.nan, [1, math.inf], {"b": (-math.inf,)}])
    @pytest.mark.parametrize("where", ["env", "wrapper"])
    def test_arguments_of_an_environment_are_finite(self, value, where, sample):
        """Anything else has no JSON, and so no hash."""
        env = {"id": "X-v0", "kwargs": {"a": value}}
        if where == "wrapper":
            env = {"id": "X-v0", "wrappers": [{"id": "a:b", "kwargs": {"a": value}}]}
        expected = r"kwargs = .*: a.* = -?(nan|inf): expected a finite number"
        with pytest.raises(rlreg.ConfigError, match=expected):
            validate(rlreg.RunConfig, {"learnable": {"type": "sample"}, "env": env})

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("device", True, "device = True: expected a string or a whole number or a list"),
            ("device", 1.5, "device = 1.5: expected a string or a whole number or a list"),
            ("device", "gpu", "device = 'gpu': expected 'auto', 'cpu', .*did you mean 'xpu' or"),
            ("device", "cpu:5", "device = 'cpu:5': cpu has no device 5"),
            ("device", ["cuda", "mps:1"], r"device\[1\] = 'mps:1': mps has no device 1"),
            ("env", ["a"], r"env = \['a'\]: expected a string or a mapping"),
            ("dataset", 1.0, "dataset = 1.0: expected a string or a mapping"),
        ],
    )
    def test_another_form_is_refused_in_words(self, field, value, message, sample):
        with pytest.raises(rlreg.ConfigError, match=message):
            validate(rlreg.RunConfig, {"learnable": {"type": "sample"}, field: value})

    def test_errors_have_no_union_tags_in_their_paths(self, sample):
        with pytest.raises(rlreg.ConfigError) as caught:
            validate(
                rlreg.RunConfig,
                {"learnable": {"type": "sample"}, "env": {"idd": "x"}, "device": ["cudda"]},
            )
        paths = [problem.path for problem in caught.value.problems]
        assert paths == [("env", "id"), ("env", "idd"), ("device", 0)]

    def test_learnable_is_required(self):
        with pytest.raises(rlreg.ConfigError, match="learnable: is required"):
            validate(rlreg.RunConfig, {})


class TestPreset:
    def test_settings_start_at_the_root_of_the_run_file(self):
        preset = rlreg.Preset("iql/x", "X.", "ours", {"learnable.expectile": 0.9})
        assert preset.learnable == "iql"
        with pytest.raises(rlreg.RlregError, match="did you mean 'learnable'"):
            rlreg.Preset("iql/x", "X.", "ours", {"learnabel.expectile": 0.9})

    @pytest.mark.parametrize("bad", ["iql", "iql/", "/x", "IQL/x", "a/b/c"])
    def test_id_names_its_learnable(self, bad):
        with pytest.raises(rlreg.RlregError, match="the id must look like"):
            rlreg.Preset(bad, "X.", "ours")


IQL_KEYS = ("actor_learning_rate", "critic_learning_rate", "gamma", "n_critics", "weight_temp")


@pytest.mark.parametrize(
    ("written", "known", "meant"),
    [
        ("lr", IQL_KEYS, ["actor_learning_rate", "critic_learning_rate"]),
        ("critic_lr", IQL_KEYS, ["critic_learning_rate"]),
        ("discount", IQL_KEYS, ["gamma"]),
        ("weight_temperature", IQL_KEYS, ["weight_temp"]),
        ("num_critics", IQL_KEYS, ["n_critics"]),
        ("learning_rate", ("learnable", "lr"), ["lr"]),  # which looks more like the former
        ("gama", IQL_KEYS, ["gamma"]),
        ("Gamma", IQL_KEYS, ["gamma"]),
        ("critics", ("a", "b"), []),
    ],
)
def test_other_spellings_of_the_field_name_the_key_that_says_the_same(written, known, meant):
    assert nearest(written, known) == meant
