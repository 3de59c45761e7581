"""Transforms: their twiddles, made on the device, and their passes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...plans.ntt import NttPlan
from .. import Array
from .launch import Launcher, cbool
from .tiles import Pass, Rows, flow_lag, prefetch_distance, split_passes, word_bytes_of, word_of

_MAX_GRID_Y = 65535


class Transform(Launcher):
    """Kernels of ntt.cu and tables.cu."""

    def ntt(self, plan: NttPlan, x: Array, out: Array) -> None:
        """See Backend."""
        if plan.basis.wide:
            self._on_host("ntt", plan, x, out)
        else:
            self._transform(plan, x, out, "forward")

    def intt(self, plan: NttPlan, x: Array, out: Array) -> None:
        """See Backend."""
        if plan.basis.wide:
            self._on_host("intt", plan, x, out)
        else:
            self._transform(plan, x, out, "inverse")

    def _transform(self, plan: NttPlan, x: Array, out: Array, direction: str) -> None:
        rows = prod(out.shape[:-1])
        if plan.points == 1:
            with self._here:
                out[...] = x
            return
        if not self._aligned(x, out):
            with self._here:
                aligned = x.copy()
            self._transform(plan, aligned, aligned, direction)
            with self._here:
                out[...] = aligned
            return
        passes = self._passes(plan, rows)
        tables, word = self._tables(plan, passes)[direction], word_of(plan.basis, self.card)
        log_degree, moduli = plan.degree.bit_length() - 1, self._moduli(plan.basis)
        self._run_passes(
            Rows(rows, len(plan.basis.moduli), log_degree, word, moduli), passes, tables, x, out, direction
        )

    def _passes(self, plan: NttPlan, rows: int | None = None) -> tuple[Pass, ...]:
        """The passes over so many rows; over many where none is given."""
        if plan.points == 1:
            return ()
        few = rows is not None and rows * plan.degree < self.card.multiprocessors << 12
        return split_passes(plan.points, plan.base, plan.basis.dtype.itemsize, self.card, few)

    def _run_passes(
        self,
        rows: Rows,
        passes: tuple[Pass, ...],
        tables: dict[Pass, Array],
        x: Array,
        out: Array,
        direction: str,
    ) -> None:
        word, word_bytes, log_degree = rows.word, word_bytes_of(rows.word), rows.log_degree
        steps: list[tuple[Pass, ...]] = [(p,) for p in passes]
        lag = 0
        if len(passes) > 1:
            columns, last = passes[-2:]
            units = rows.count << columns.log_blocks
            lag = flow_lag(columns, last, log_degree, units, word, self.card)
            if lag:
                steps[-2:] = [(columns, last)]
        source = x
        for i, step in enumerate(steps if direction == "forward" else steps[::-1]):
            grid, grid_y, args = self._pass(rows, step[0], tables[step[0]])
            lazy_in, root = i > 0, i + 1 == len(steps)  # whether the last stages of an inverse are the root's
            if len(step) == 1:
                name, flags = f"ntt_{direction}", [lazy_in, root if direction == "inverse" else not root]
                args.append(np.uint32(prefetch_distance(step[0], word_bytes, self.card)))
            else:
                name, flags = f"ntt_{direction}_flow", [root if direction == "inverse" else lazy_in]
                with self._here:
                    progress = self.xp.zeros(1 + units, np.uint32)
                args[2] = np.uint64(units)
                args += [tables[last], progress, np.uint32(lag)]
                tasks = (1 << (log_degree - columns.log_blocks - p.log_block_values) for p in step)
                grid, grid_y = (units + lag) * sum(tasks), 1
            arguments = ", ".join([word, *(p.shape for p in step), *map(cbool, flags)])
            shared = max(p.shared_values for p in step) * word_bytes
            args = [source, out, *args]
            self._run("ntt.cu", f"{name}<{arguments}>", grid, step[0].threads, args, shared, grid_y)
            source = out

    def _pass(self, rows: Rows, passed: Pass, tables: Array) -> tuple[int, int, list[Any]]:
        """The grid in x and y, and the arguments that all transform kernels share."""
        limbs, log_degree = rows.limbs, rows.log_degree
        tiles = rows.count << log_degree >> (passed.log_length + passed.log_columns)
        args = [rows.moduli, tables, np.uint64(tiles), np.uint32(limbs)]
        args += [np.uint32(log_degree), np.uint32(passed.log_blocks)]
        log_parts = log_degree - passed.log_block_values
        # Where twiddles are more than an eighth of the cache, rows that share them run side by side.
        large = 8 * tables.nbytes > self.card.l2_bytes
        if large and log_parts >= 0 and limbs << log_parts <= _MAX_GRID_Y:
            return rows.count // limbs, limbs << log_parts, args
        return -(-tiles >> passed.log_rows), 1, args

    def _tables(self, plan: NttPlan, passes: tuple[Pass, ...]) -> dict[str, Any]:
        key = f"tables {[p.shape for p in passes]}"
        tables: dict[str, Any] = self._shared(plan.handles, key, lambda: self._make_tables(plan, passes))
        return tables

    def _make_tables(self, plan: NttPlan, passes: tuple[Pass, ...]) -> dict[str, Any]:
        """Twiddles by direction and pass, and the constants of incomplete leaves, made on the device."""
        basis, points = plan.basis, plan.points
        word = word_of(basis, self.card)
        bits = points.bit_length() - (1 if plan.kind == "negacyclic" else 2)
        size = 1 if word == "Float64" else 2  # entries of W::Twiddle
        moduli = self._moduli(basis)
        starts = [self.from_host(np.array(p.starts, np.uint32)) for p in passes]
        rows = len(basis.moduli)
        tables: dict[str, Any] = {}
        for name, sign in (("forward", 1), ("inverse", -1)):
            factors = np.ones((rows, max(bits, 1)), np.uint64)
            scale = np.ones(rows, np.uint64)
            for i, (q, root) in enumerate(zip(basis.moduli, (t.root for t in plan.tables), strict=True)):
                x = pow(root, sign, q)
                for d in reversed(range(bits)):
                    factors[i, d], x = x, x * x % q
                if sign < 0:
                    scale[i] = pow(points, -1, q)
            constants = [self.from_host(x) for x in (factors, scale)]
            tables[name] = {}
            for p, starts_of_pass in zip(passes, starts, strict=True):
                entries = 1 << (p.log_blocks + p.log_length)
                table = tables[name][p] = self.xp.empty((rows, entries, size), basis.dtype)
                args = [table, moduli, *constants, starts_of_pass]
                args += [np.uint32(x) for x in (p.log_blocks, p.log_length, bits, plan.kind == "negacyclic")]
                self._entrywise("tables.cu", f"fill_twiddles<{word}>", entries, args, rows)
        if plan.base > 1 and points > 1:
            tables["leaves"] = self.xp.empty((rows, points), np.uint64)
            last = passes[-1]
            args = [tables["leaves"], tables["forward"][last], moduli, starts[-1]]
            args += [np.uint32(last.log_blocks), np.uint32(last.log_length)]
            self._entrywise("tables.cu", f"fill_leaves<{word}>", points, args, rows)
        elif plan.base > 1:
            leaves = [[q - 1 if plan.kind == "negacyclic" else 1] for q in basis.moduli]
            tables["leaves"] = self.from_host(np.array(leaves, np.uint64))
        return tables
