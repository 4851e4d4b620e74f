"""The loop of a training run: batches, steps, checkpoints, curve."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eagle_chat.core.errors import EagleChatError, UserError, first_line
from eagle_chat.training.checkpoints import BEST, LAST, Position, RunFolder
from eagle_chat.training.config import TrainConfig
from eagle_chat.training.dataset import batches
from eagle_chat.training.evaluate import measure
from eagle_chat.training.interrupt import StopRequest
from eagle_chat.training.objectives import Acceptance, acceptance
from eagle_chat.training.prepare import Materials
from eagle_chat.training.schedule import Average, learning_rate, parameter_groups, unroll_steps
from eagle_chat.training.view import View

BETAS = (0.9, 0.95)
Ending = Literal["finished", "interrupted", "out of time"]


@dataclass(frozen=True)
class StepResult:
    """One optimiser step: mean loss over its batches, counts [steps, 4], gradient norm before clipping."""

    loss: float
    counts: Tensor
    norm: float
    rate: float


class Trainer:
    """A run from where its folder says it stands."""

    def __init__(
        self, config: TrainConfig, materials: Materials, folder: RunFolder, accelerator: Any, view: View
    ) -> None:
        self.config, self.materials, self.folder, self.view = config, materials, folder, view
        self.accelerator = accelerator
        self._lengths = [len(sample) for sample in materials.dataset.train]
        groups = parameter_groups(materials.objective, config.weight_decay)
        optimiser = torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS)
        self._model, self._optimiser = accelerator.prepare(materials.objective, optimiser)
        self.position = Position()
        self._average = Average(materials.objective, config.ema) if config.ema > 0 else None
        self._epoch: tuple[int, list[list[int]]] | None = None
        per_epoch = len(self._batches(0)) // accelerator.num_processes
        self.total = config.steps or math.ceil(config.epochs * max(1, per_epoch) / config.accumulate)

    def resume(self) -> bool:
        """Go to the newest checkpoint; whether there was one."""
        saved = self.folder.newest()
        if saved is not None:
            try:
                self._restore(saved)
            except (RuntimeError, LookupError, TypeError, ValueError) as error:
                raise UserError(
                    f"a checkpoint of this run expected in {self.folder.path}, found one of another "
                    f"({first_line(error)}): remove it, and the run goes on from what is left"
                ) from error
        if self.accelerator.is_main_process:
            self.folder.cut_curve(self.position.step)
        return saved is not None

    def _restore(self, saved: dict[str, Any]) -> None:
        self.materials.objective.head.load_state_dict(saved["weights"])
        self._optimiser.load_state_dict(saved["optimiser"])
        self.position = Position(**saved["position"])
        if self._average is not None and saved["average"] is not None:
            self._average.updates = saved["average"]["updates"]
            for name, value in saved["average"]["values"].items():
                self._average.values[name].copy_(value)
        if self.accelerator.scaler is not None and saved["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(saved["scaler"])

    def run(self) -> Ending:
        """Train to the end, to Ctrl-C, or until the time is up; a checkpoint is left in each case.

        Validations are at the steps that an undisturbed run has them at, so that both end with the same curve and head.
        """
        start = time.monotonic()
        ending: Ending = "finished"
        with StopRequest() as stop, self.view:
            self.view.begin(self.position.step, self.total)
            while self.position.step < self.total:
                self._one_step()
                if self.position.step % self.config.evaluate_every == 0 or self.position.step == self.total:
                    self._validate()
                if self.position.step % self.config.save_every == 0:
                    self._save()
                over_time = 0 < self.config.minutes * 60 < time.monotonic() - start
                if self._any(stop.asked or over_time) and self.position.step < self.total:
                    ending = "interrupted" if stop.asked else "out of time"
                    break
            self._save()
        return ending

    def _any(self, flag: bool) -> bool:
        """Whether any process says so: all must leave the loop at the same step."""
        if self.accelerator.num_processes == 1:
            return flag
        told = torch.tensor(float(flag), device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum") > 0)

    def _one_step(self) -> None:
        start = time.perf_counter()
        tokens_before = self.position.tokens
        result = self._optimise()
        if not math.isfinite(result.loss):
            raise self._diverged(f"a finite loss expected, found {result.loss}")
        self.position.step += 1
        seconds = time.perf_counter() - start
        self.position.seconds += seconds
        figures = acceptance(result.counts)
        row = {
            "kind": "train",
            "step": self.position.step,
            "epoch": self.position.epoch,
            "loss": result.loss,
            "acceptance": list(figures.by_step),
            "gradient_norm": result.norm,
            "learning_rate": result.rate,
            "answer_tokens": self.position.tokens,
            "seconds": round(self.position.seconds, 3),
        }
        self._record(row)
        self.view.step(row, (self.position.tokens - tokens_before) / seconds)

    def _diverged(self, what: str) -> EagleChatError:
        # The rate is one of the things that make a run, so it cannot be lowered in this folder.
        return EagleChatError(
            f"{what} at step {self.position.step}: begin anew with a lower --learning-rate and another --out"
        )

    def _expect_finite_weights(self) -> None:
        """What one update has ruined shows in the loss of the next step only."""
        if not all(bool(value.isfinite().all()) for value in self.materials.head.parameters()):
            raise self._diverged("finite weights expected, found some that are no numbers")

    def _optimise(self) -> StepResult:
        """Forward and backward over the step's batches, then one update."""
        config, step = self.config, self.position.step
        rate = learning_rate(config, step, self.total)
        steps = unroll_steps(config, step, self.total)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        losses, counts = [], []
        self._model.train()
        for micro in range(config.accumulate):
            batch = self.materials.train.batch(self._next_numbers())
            last = micro + 1 == config.accumulate
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self._model):
                loss, counted = self._model(batch, steps, self._noise(step, micro))
                self.accelerator.backward(loss / config.accumulate)
            losses.append(loss.detach())
            counts.append(counted)
        norm = self.accelerator.clip_grad_norm_(self.materials.objective.parameters(), config.clip)
        self._optimiser.step()
        self._optimiser.zero_grad()
        if self._average is not None:
            self._average.update(self.materials.objective)
        total = self.accelerator.reduce(torch.stack(counts).sum(dim=0), "sum")
        loss = self.accelerator.reduce(torch.stack(losses).mean(), "mean")
        self.position.tokens += int(total[0, 0])
        return StepResult(loss.item(), total, float(norm), rate)

    def _batches(self, epoch: int) -> list[list[int]]:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, batches(self._lengths, self.config.batch_tokens, self.config.seed, epoch))
        return self._epoch[1]

    def _next_numbers(self) -> list[int]:
        """This process's next batch; an epoch's last batches are left out where there is not one for each process."""
        processes = self.accelerator.num_processes
        plan = self._batches(self.position.epoch)
        if self.position.batch + processes > len(plan) and self.position.batch > 0:
            self.position.epoch, self.position.batch = self.position.epoch + 1, 0
            plan = self._batches(self.position.epoch)
        numbers = plan[(self.position.batch + self.accelerator.process_index) % len(plan)]
        self.position.batch += processes
        return numbers

    def _noise(self, step: int, micro: int) -> torch.Generator:
        """The noise of one batch, by seed, step, batch and process: a resumed run draws the same."""
        key = f"{self.config.seed} {step} {micro} {self.accelerator.process_index}"
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
        return torch.Generator(self.materials.target.device).manual_seed(number)

    def _validate(self) -> None:
        """Acceptance on held-out text with the weights that would be exported; the best ones are kept."""
        self._expect_finite_weights()
        samples = self.materials.dataset.validation[: self.config.evaluate_samples]
        if not samples or not self.accelerator.is_main_process:
            return
        with self._exported_weights():
            loss, counts = measure(
                self.materials.objective,
                self.materials.validation,
                [len(sample) for sample in samples],
                self.config.batch_tokens,
                max(self.config.unroll),
            )
            figures = acceptance(counts)
            better = figures.chain_tau > self.position.best_tau
            if better:
                self.position.best_tau = figures.chain_tau
                self.folder.save_weights(BEST, self._weights(figures))
        row = {
            "kind": "validation",
            "step": self.position.step,
            "loss": loss,
            "acceptance": list(figures.by_step),
            "in_chain": list(figures.in_chain),
            "chain_tau": figures.chain_tau,
            "best": better,
        }
        self._record(row)
        self.view.validation(row)

    def _exported_weights(self) -> contextlib.AbstractContextManager[None]:
        average = self._average
        return contextlib.nullcontext() if average is None else average.applied(self.materials.objective)

    def _weights(self, figures: Acceptance | None) -> dict[str, Any]:
        """A head by itself: what `export` reads."""
        head = self.materials.head
        return {
            "weights": {name: value.detach().cpu().clone() for name, value in head.state_dict().items()},
            "spec": dataclasses.asdict(head.spec),
            "draft_ids": self.materials.draft_ids,
            "step": self.position.step,
            "answer_tokens": self.position.tokens,
            "seconds": self.position.seconds,
            "acceptance": dataclasses.asdict(figures) if figures is not None else None,
        }

    def _save(self) -> None:
        self._expect_finite_weights()
        if not self.accelerator.is_main_process:
            return
        average = self._average
        content = {
            "weights": self.materials.head.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "position": dataclasses.asdict(self.position),
            "average": None if average is None else {"updates": average.updates, "values": average.values},
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None,
            "draft_ids": self.materials.draft_ids,
        }
        with self._exported_weights():
            self.folder.save_weights(LAST, self._weights(None))
        self.folder.save(content, self.position.step, self.config.keep_checkpoints)

    def _record(self, row: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            self.folder.add_to_curve(row)
        if self.config.tracker != "none":
            figures: dict[str, float] = {}
            for name, value in row.items():
                if isinstance(value, list):
                    figures |= {f"{row['kind']}/{name}/{at}": share for at, share in enumerate(value)}
                elif not isinstance(value, str):
                    figures[f"{row['kind']}/{name}"] = value
            self.accelerator.log(figures, step=row["step"])
