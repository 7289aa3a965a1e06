"""What arithmetic and memory traffic cost one GPU, from load pulses of known work. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.values import NotNegative  # noqa: TC001 - what reads cards and records needs it

if TYPE_CHECKING:
    from collections.abc import Iterable

# A pulse whose mean power the fit misses by more than this is of work that three figures do not describe.
MAX_MISFIT = 0.12
# Kinds of work that are this close to mixes of each other, relative, cannot be told apart.
ALIKE = 0.02


class Pulse(NamedTuple):
    """One stretch of load: when it began on an idle GPU, and when the device had drained; ns.

    Attributes:
        operations: Of tensor arithmetic, with operands of so many `bits`; 0 where the work is not known.
        bytes_moved: Between the GPU and its memory, at least.
    """

    kind: str
    on_ns: int
    off_ns: int
    operations: float = 0.0
    bytes_moved: float = 0.0
    bits: int = 16


@dataclass(frozen=True)
class WorkPower:
    """Power of a GPU at work: a constant, and energy for each operation and for each byte moved.

    Attributes:
        j_per_operation: Of tensor arithmetic, by the bits of its operands: 16, and 8 where the GPU has it.
        j_per_byte: Of its own memory.
        constant_w: Whatever it does.
        worst_misfit: Largest share by which the fit misses the mean power of a pulse.
        pulses: That were fitted.
    """

    j_per_operation: dict[int, NotNegative]
    j_per_byte: NotNegative
    constant_w: NotNegative
    worst_misfit: NotNegative
    pulses: int

    @classmethod
    def of_pulses(cls, pulses: Iterable[tuple[Pulse, float | None]]) -> WorkPower | None:
        """Return what pulses of known work show, each with its joules; None where they are too few or too much alike.

        Least squares of relative power; no figure is below 0.
        """
        from scipy.optimize import nnls

        known = [(pulse, energy_j) for pulse, energy_j in pulses if energy_j]
        bits = sorted({pulse.bits for pulse, _ in known if pulse.operations}, reverse=True)
        rows = [
            [
                *(pulse.operations * (pulse.bits == of) / energy_j for of in bits),
                pulse.bytes_moved / energy_j,
                (pulse.off_ns - pulse.on_ns) / NS_PER_S / energy_j,
            ]
            for pulse, energy_j in known
        ]
        work = np.array(rows).reshape(len(rows), len(bits) + 2)
        # In units of their largest share, so that joules per byte and watts weigh alike.
        scale = work.max(axis=0, initial=0.0)
        if (
            not bits
            or len(known) <= len(scale)
            or not scale.all()
            or np.linalg.matrix_rank(work / scale, rtol=ALIKE) < len(scale)
        ):
            return None
        solved, _ = nnls(work / scale, np.ones(len(known)))
        *per_operation, per_byte, constant_w = (float(figure) for figure in solved / scale)
        return cls(
            j_per_operation=dict(zip(bits, per_operation, strict=True)),
            j_per_byte=per_byte,
            constant_w=constant_w,
            worst_misfit=float(np.abs(work @ (solved / scale) - 1).max()),
            pulses=len(known),
        )

    @property
    def doubt(self) -> str | None:
        """Why results do not use it; None if they do."""
        if self.worst_misfit <= MAX_MISFIT:
            return None
        return f"it misses a pulse's power by {self.worst_misfit:.0%}, more than {MAX_MISFIT:.0%}"
