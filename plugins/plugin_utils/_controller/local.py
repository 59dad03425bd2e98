# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the ``main`` of a module on the controller, without a Python of its own."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.utils.display import Display


class _Ended(Exception):
    """The module has its result."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__()
        self.result = result


class _Module:
    """What the modules use of AnsibleModule."""

    def __init__(
        self,
        options: Mapping[str, Any],
        check_mode: bool,
        diff: bool,
        argument_spec: Mapping[str, Any],
        supports_check_mode: bool,
        **rules: Any,
    ) -> None:
        if check_mode and not supports_check_mode:
            raise _Ended({"skipped": True, "msg": "the module does not support check mode"})
        checked = ArgumentSpecValidator(argument_spec, **rules).validate(options)
        if checked.error_messages:
            self.fail_json(msg="; ".join(checked.error_messages))
        self.params, self.check_mode, self._diff = checked.validated_parameters, check_mode, diff

    def exit_json(self, **result: Any) -> NoReturn:
        raise _Ended(result)

    def fail_json(self, **result: Any) -> NoReturn:
        raise _Ended({"failed": True, **result})

    def warn(self, text: str) -> None:
        Display().warning(text)


def call(
    main: Callable[[Callable[..., Any]], None], options: Mapping[str, Any], check_mode: bool, diff: bool = False
) -> dict[str, Any]:
    """Return what the module returns for these options."""
    try:
        # Ansible shows what a task writes to its error output, and ignores that of a module.
        with warnings.catch_warnings(action="ignore"):
            # Ansible marks the strings of its options, and PyYAML writes plain ones only.
            main(partial(_Module, json.loads(json.dumps(options)), check_mode, diff))
    except _Ended as ended:
        result: dict[str, Any] = json.loads(json.dumps(ended.result))
        return result
    raise AssertionError("a module ends with exit_json or fail_json")
