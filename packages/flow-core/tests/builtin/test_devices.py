"""The built-in devices satisfy the driver contract."""

from __future__ import annotations

from flow_core.base.config import Settings
from flow_core.builtin.null_driver import NullArray
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.testing import DeviceKit, Gap


class TestCpu(DeviceKit):
    device_type = "cpu"


class TestLastCpu(DeviceKit):
    device_type = "cpu"
    index = 1023


class TestEmulatedGpu(DeviceKit):
    device_type = "gpu"
    index = 1

    def registry(self) -> Registry:
        return load_plugins(Settings(plugins=(), emulate_gpus=2))


NO_CONTENTS = "the null device has no memory: what is copied in is counted, and lost"
NO_WORK = "the null device counts launches, it does not run them"


class TestNull(DeviceKit):
    device_type = "null"

    def address(self, array: NullArray) -> int:
        return array.offset

    gaps = (
        *(
            Gap("null", "never", NO_CONTENTS, (check,))
            for check in (
                "views_share_the_arena", "arenas_are_separate", "arrays_outlive_names",
                "copy_in_takes_any_host_layout", "copy_in_is_done_with_its_source",
                "copy_out_fills_a_given_array", "copy_out_is_independent", "round_trip",
            )
        ),
        *(
            Gap("null", "never", NO_WORK, (check,))
            for check in (
                "compile_runs_in_order", "the_last_launch_wins", "errors_of_launches_surface",
                "copies_wait_for_work", "work_waits_for_copies", "streams_wait_for_events",
                "streams_of_one_name_are_one_stream", "the_host_waits_for_events",
            )
        ),
    )  # fmt: skip
