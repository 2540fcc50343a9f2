"""What keeps a run from being lost, undone one by one: a test notices each (docs/concepts/checkpoints.md)."""

from __future__ import annotations

from mutants.mutation import Mutation

_ERRORS, _TRAINER = "training/errors.py", "training/trainer.py"
_GUARD, _INTERRUPTION = "training/finite.py", "training/interruption.py"
_CHECKPOINTS, _STATE = "training/checkpoint/__init__.py", "training/checkpoint/state.py"
_DIRECTORY, _LOG = "training/checkpoint/run_directory.py", "training/logging/__init__.py"
_PERSISTENCE, _RING = "data/persistence.py", "data/ring.py"
_JOB, _WORKER = "studies/job_state.py", "studies/worker.py"

_FINITE = "training/test_finite.py::"
_DAMAGE = "training/test_damage.py::"
_RUN_DIRECTORY = "training/test_run_directory.py::"
_SIGNALS = "training/test_signals.py::"
_COMMAND = "training/test_command_errors.py::"
_CHECKPOINT = "training/test_checkpoint.py::"
_SEGMENTS = "data/test_segments.py::"
_STUDIES = "studies/test_damage.py::"
_CRAFTED = (_DAMAGE + "test_crafted_indices_are_refused",)
_RENAMES = (_DAMAGE + "test_renames_are_synced",)
_FOLDERS = (_STUDIES + "test_a_damaged_folder_is_named_and_stops_nothing",)
_SETTINGS = (_DAMAGE + "test_settings_that_no_run_wrote_are_refused",)
_LOST = (_RUN_DIRECTORY + "test_a_run_that_lost_its_checkpoints_does_not_start_over",)
_RESTORED = (_DAMAGE + "test_the_log_is_restored_from_the_checkpoint",)

# 1. Numbers
NUMBERS = [
    Mutation(
        "a loss that is not finite is not looked at",
        _TRAINER,
        "self._guard.check_updates(found, self.counters.updates)",
        "pass",
        (_FINITE + "test_the_loss_is_named_with_its_update",),
    ),
    Mutation(
        "weights and moments are not looked at",
        _TRAINER,
        "self._guard.check_weights(self.counters.updates)",
        "pass",
        (_FINITE + "test_what_no_loss_shows_ends_the_run_too",),
    ),
    Mutation(
        "a row is written without a look at the numbers",
        _TRAINER,
        "row = self.metrics.row()\n        self._check_finite()",
        "row = self.metrics.row()",
        (_FINITE + "test_divergence_stops_the_run_and_keeps_what_is_finite",),
    ),
    Mutation(
        "a signal saves what is not finite",
        _TRAINER,
        "            self._check_finite()\n            self._save()",
        "            self._save()",
        (_FINITE + "test_a_signal_saves_nothing_that_is_not_finite",),
    ),
    Mutation(
        "the optimizer's moments are not looked at",
        _GUARD,
        "if _all_finite([*kept, *moments]):",
        "if _all_finite(kept):",
        (_FINITE + "test_a_gradient_is_named",),
    ),
    Mutation(
        "what is collected is not looked at",
        _TRAINER,
        "self._guard.check_batch(data, counters.frames, streams)",
        "pass",
        (_FINITE + "test_what_is_collected_is_named_with_environment_and_step",),
    ),
    Mutation(
        "only what follows a step is looked at, not the first observation",
        _GUARD,
        'keys += [key, ("next",',
        'keys += [("next",',
        (_FINITE + "test_the_first_observation_of_an_episode_is_looked_at_too",),
    ),
    Mutation(
        "the wrong environment is named",
        _GUARD,
        "number = place if streams is None else streams[place]",
        "number = place",
        (_FINITE + "test_the_environments_of_a_worker_have_their_numbers",),
    ),
    Mutation(
        "the wrong step is named",
        _GUARD,
        "frames // self._num_envs + step + 1",
        "frames + step + 1",
        (_FINITE + "test_what_is_collected_is_named_with_environment_and_step",),
    ),
    Mutation(
        "large numbers count as infinite",
        _GUARD,
        "if not len(places):\n                continue",
        "if not len(places):\n                raise NonFiniteError(str(key))",
        (_FINITE + "test_large_numbers_are_finite",),
    ),
    Mutation(
        "an error made of NaN stays as it is",
        _TRAINER,
        "self._guard.check_updates(self.metrics.first_non_finite(), counters.updates)\n"
        "        self._guard.check_weights(counters.updates)",
        "pass",
        (_FINITE + "test_an_error_made_of_nan_is_explained",),
    ),
    Mutation(
        "a run that diverged ends with exit code 0",
        _ERRORS,
        "    exit_code = 1\n",
        "    exit_code = 0\n",
        (_FINITE + "test_the_exit_code",),
    ),
    Mutation(
        "an evaluation may be NaN",
        _TRAINER,
        "self._guard.check_evaluation(found, self.counters.frames)",
        "pass",
        (_FINITE + "test_an_evaluation_that_is_not_finite_ends_the_run",),
    ),
    Mutation(
        "the best is kept without being asked for",
        _TRAINER,
        "if not self.config.keep_best or self.unevaluated is not None:",
        "if self.unevaluated is not None:",
        (_FINITE + "test_the_best_evaluated_checkpoint_is_kept",),
    ),
    Mutation(
        "weights are looked at after every update",
        _TRAINER,
        "            counters.updates += 1\n",
        "            counters.updates += 1\n            self._check_finite()\n",
        (_FINITE + "test_an_update_looks_at_no_number",),
    ),
]

# 2. Checkpoints
CHECKPOINTS = [
    Mutation(
        "a run that lost its checkpoints starts over",
        _STATE,
        "directory.refuse_lost_checkpoints(bool(log.read_bytes()))",
        "pass",
        _LOST,
    ),
    Mutation(
        "the log is cut before the run is refused",
        _STATE,
        "directory.refuse_lost_checkpoints(bool(log.read_bytes()))\n            log.truncate(0)",
        "log.truncate(0)\n            directory.refuse_lost_checkpoints(True)",
        _LOST,
    ),
    Mutation(
        "checkpoints are not noted in run.json",
        _STATE,
        "self._directory.saved(fingerprint, step)",
        "pass",
        _LOST,
    ),
    Mutation(
        "a run of an older version starts over",
        _DIRECTORY,
        '"an unknown number of" if log_has_rows else None',
        "None",
        (_RUN_DIRECTORY + "test_a_run_of_an_older_version_is_not_started_over_either",),
    ),
    Mutation(
        "only errors of our own fall back",
        _CHECKPOINTS,
        "            except Exception as error:\n                ours",
        "            except ValueError as error:\n                ours",
        (_DAMAGE + "test_any_error_of_a_checkpoint_falls_back",),
    ),
    Mutation(
        "a state that cannot be used does not fall back",
        _STATE,
        "state = checkpoints.load_latest(use)",
        "state = checkpoints.load_latest()\n            use(state)",
        (_DAMAGE + "test_a_state_with_a_part_missing_falls_back",),
    ),
    Mutation(
        "a directory in the place of a file stops the next save",
        _CHECKPOINTS,
        "if entry.is_dir() or entry == folder:",
        "if False:",
        (_DAMAGE + "test_other_things_in_the_place_of_files",),
    ),
    Mutation(
        "unfinished checkpoints stay when a run ends",
        _TRAINER,
        "self.checkpoints.remove_unfinished()",
        "pass",
        (_DAMAGE + "test_unfinished_checkpoints_are_removed_when_a_run_ends",),
    ),
    Mutation(
        "half a checkpoint stays on a full disk",
        _CHECKPOINTS,
        "            with contextlib.suppress(OSError):\n                self.remove_unfinished()\n",
        "",
        (_DAMAGE + "test_a_checkpoint_that_fails_leaves_nothing_behind",),
    ),
    Mutation(
        "a run may become shorter",
        _STATE,
        "            self._check_end(state)\n",
        "",
        (_RUN_DIRECTORY + "test_a_run_does_not_become_shorter",),
    ),
]

# Segments
SEGMENTS = [
    Mutation(
        "a row that the ring has overwritten counts as unchanged",
        _RING,
        "written = rounds * (stop - start) + np.clip",
        "written = np.clip",
        (_SEGMENTS + "test_any_history_comes_back",),
    ),
    Mutation(
        "only the first stream's rows count as changed",
        _RING,
        "written.tobytes()",
        "written[:1].tobytes()",
        (_SEGMENTS + "test_any_history_comes_back",),
    ),
    Mutation(
        "a replay that was loaded counts as unchanged",
        _RING,
        'of the same shape."""\n        self._history = next(_HISTORIES)',
        'of the same shape."""',
        (_SEGMENTS + "test_what_the_heads_do_not_show_is_no_reason_to_keep_a_file",),
    ),
    Mutation(
        "a row that was edited counts as unchanged",
        "data/writer.py",
        '"""Writes rows."""\n        self.edits += 1',
        '"""Writes rows."""',
        (_SEGMENTS + "test_what_the_heads_do_not_show_is_no_reason_to_keep_a_file",),
    ),
    Mutation(
        "checkpoints that are kept share files",
        _CHECKPOINTS,
        "- {*kept[:-1], self._best}",
        "- {self._best}",
        (_CHECKPOINT + "test_kept_checkpoints_share_no_file",),
    ),
    Mutation(
        "the best checkpoint shares files with the newest",
        _CHECKPOINTS,
        "self._save(self._best, state, {self._best})",
        "self._save(self._best, state, {*self._segments})",
        (_CHECKPOINT + "test_kept_checkpoints_share_no_file",),
    ),
    Mutation(
        "every checkpoint writes the whole replay",
        _CHECKPOINTS,
        "compress=True, reuse=reuse)",
        "compress=True)",
        (_CHECKPOINT + "test_kept_checkpoints_share_no_file",),
    ),
    Mutation(
        "a segment that was cut is taken over",
        _PERSISTENCE,
        'if segment.path.stat().st_size != segment.facts["bytes"]:',
        "if False:",
        (_SEGMENTS + "test_a_damaged_file_is_not_taken_over",),
    ),
    Mutation(
        "a segment is taken over without being read again",
        _PERSISTENCE,
        "        if read:\n",
        "        if False:\n",
        (_SEGMENTS + "test_a_damaged_file_is_not_taken_over",),
    ),
    Mutation(
        "a copy of a segment is not checked",
        _PERSISTENCE,
        "copy.write(_read(segment.path, segment.facts).data)",
        "copy.write(segment.path.read_bytes())",
        (_SEGMENTS + "test_a_damaged_file_is_not_taken_over",),
    ),
    Mutation(
        "a copy writes through a link",
        _PERSISTENCE,
        "    target.unlink(missing_ok=True)\n    try:",
        "    try:",
        (_SEGMENTS + "test_a_link_never_writes_through_to_its_source",),
    ),
    Mutation(
        "without hard links nothing is taken over",
        _PERSISTENCE,
        "    except OSError:  # FAT",
        "    except KeyError:  # FAT",
        (_SEGMENTS + "test_any_history_comes_back",),
    ),
    Mutation(
        "all segments are loaded into the first rows",
        "data/replay_buffer.py",
        "                start = stop\n",
        "                pass\n",
        (_SEGMENTS + "test_any_history_comes_back",),
    ),
]

# 3. Log
LOG = [
    Mutation(
        "the log is not restored",
        _STATE,
        "            self._check_end(state)\n            self._restore_log(state)",
        "            self._check_end(state)",
        _RESTORED,
    ),
    Mutation(
        "damage to the log is not named",
        _LOG,
        "damage = self._damage(saved)",
        "damage = None",
        _RESTORED,
    ),
    Mutation(
        "a wrong number in the log is no damage",
        _LOG,
        "if any(new[name] != value for name, value in known.items()):",
        "if False:",
        _RESTORED,
    ),
    Mutation(
        "binary lines raise an error of the machine",
        _LOG,
        "        except UnicodeDecodeError:\n            text",
        "        except ZeroDivisionError:\n            text",
        _RESTORED,
    ),
    Mutation(
        "what a killed run left after the checkpoint's rows counts as damage",
        _LOG,
        "rows = self._first(len(saved))",
        "rows = self.read()",
        (_DAMAGE + "test_what_a_killed_run_leaves_of_a_row_is_no_damage",),
    ),
    Mutation(
        "a temporary file is not synced before its rename",
        _PERSISTENCE,
        "            file.write(data)\n            file.flush()\n            os.fsync(file.fileno())",
        "            file.write(data)",
        _RENAMES,
    ),
    Mutation(
        "the directory is not synced after a rename",
        _PERSISTENCE,
        "        raise\n    sync_directory(path.parent)",
        "        raise",
        _RENAMES,
    ),
    Mutation(
        "the files of a state are not synced",
        _PERSISTENCE,
        "        self.file.flush()\n        os.fsync(self.file.fileno())",
        "        self.file.flush()",
        _RENAMES,
    ),
    Mutation(
        "the files of a state have no names on disk when its index has",
        _PERSISTENCE,
        "    sync_directory(directory)\n    write_file",
        "    write_file",
        _RENAMES,
    ),
    Mutation(
        "the parent of a new checkpoint is not synced",
        _PERSISTENCE,
        "    sync_directory(directory.parent)\n",
        "",
        _RENAMES,
    ),
    Mutation(
        "the run directory is not synced when it gets its checkpoints",
        _CHECKPOINTS,
        "        sync_directory(self.path.parent)\n",
        "",
        _RENAMES,
    ),
    Mutation(
        "a study's state is not synced before the checkpoints go",
        _WORKER,
        "        os.fsync(folder)\n",
        "        pass\n",
        (_STUDIES + "test_a_state_is_on_disk_before_anything_follows_from_it",),
    ),
]

# 4. Signals
SIGNALS = [
    Mutation(
        "SIGINT is not caught",
        _INTERRUPTION,
        "for number in (signal.SIGTERM, signal.SIGINT):\n                self._before",
        "for number in (signal.SIGTERM,):\n                self._before",
        (_SIGNALS + "test_a_signal_saves_first",),
    ),
    Mutation(
        "a signal ends with exit code 1",
        _ERRORS,
        "self.exit_code = 128 + int(signal_number)",
        "self.exit_code = 1",
        (_SIGNALS + "test_what_was_gathered_for_a_row_is_saved",),
    ),
    Mutation(
        "a signal waits for the end of the run",
        _TRAINER,
        "if self._interruption.received is not None:\n                    # Before",
        "if False:\n                    # Before",
        (_SIGNALS + "test_what_was_gathered_for_a_row_is_saved",),
    ),
    Mutation(
        "a signal saves nothing",
        _TRAINER,
        "if frames not in self.checkpoints.steps():",
        "if False:",
        (_SIGNALS + "test_what_was_gathered_for_a_row_is_saved",),
    ),
    Mutation(
        "what was gathered since the last row is lost",
        _STATE,
        'self.metrics.load_state(state["metrics"])',
        "pass",
        (_SIGNALS + "test_what_was_gathered_for_a_row_is_saved",),
    ),
    Mutation(
        "a second signal is ignored",
        _INTERRUPTION,
        "        if self.received is not None:\n            _end_at_once(number)",
        "        if self.received is not None:\n            return",
        (_SIGNALS + "test_a_second_signal_or_the_end_of_patience_ends_at_once",),
    ),
    Mutation(
        "the last checkpoint may take for ever",
        _INTERRUPTION,
        "        self._timer.start()\n",
        "",
        (_SIGNALS + "test_a_second_signal_or_the_end_of_patience_ends_at_once",),
    ),
    Mutation(
        "the end at once leaves its children behind",
        _INTERRUPTION,
        "        process.kill()\n",
        "        pass\n",
        (_SIGNALS + "test_the_end_at_once_leaves_no_process",),
    ),
    Mutation(
        "SIGTERM outside of a run kills",
        _ERRORS,
        "before = signal.signal(signal.SIGTERM, end)",
        "before = signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        (_SIGNALS + "test_sigterm_outside_of_a_run_is_a_sentence_too",),
    ),
    Mutation(
        "the handlers of before are not restored",
        _INTERRUPTION,
        "            signal.signal(number, handler)\n",
        "            pass\n",
        (_SIGNALS + "test_the_handlers_of_before_are_back",),
    ),
]

# 5. Studies
STUDIES = [
    Mutation(
        "a damaged folder stops the study",
        "studies/runner.py",
        "except DamagedRun:\n                damaged.append(job)",
        "except ZeroDivisionError:\n                damaged.append(job)",
        _FOLDERS,
    ),
    Mutation(
        "a lock that is a folder is no damage",
        _JOB,
        "for name in (worker.JOB, worker.LOCK, worker.STATE, worker.LOG):",
        "for name in (worker.JOB, worker.STATE, worker.LOG):",
        _FOLDERS,
    ),
    Mutation(
        "a file in the place of a folder is no damage",
        _JOB,
        "    if not folder.is_dir():\n",
        "    if False:\n",
        _FOLDERS,
    ),
    Mutation(
        "a job of wrong types is no damage",
        _JOB,
        "        if not whole:\n",
        "        if False:\n",
        _FOLDERS,
    ),
    Mutation(
        "done without a log is done",
        _JOB,
        'if state == "done" and job and trains and not progress.frames:',
        "if False:",
        _FOLDERS,
    ),
    Mutation(
        "a log of garbage is no damage",
        _JOB,
        '        if state != "running":\n            return RunState("failed", progress, seconds, f"',
        '        if False:\n            return RunState("failed", progress, seconds, f"',
        _FOLDERS,
    ),
    Mutation(
        "failed runs are not retried",
        "studies/runner.py",
        "                self.waiting.append(job)\n\n    def look",
        "                pass\n\n    def look",
        (_STUDIES + "test_retries_are_as_many_as_given",),
    ),
    Mutation(
        "failed runs are retried for ever",
        "studies/runner.py",
        "                self.retries[job.name] -= 1\n                self.waiting.append(job)",
        "                self.retries[job.name] -= 0.5\n                self.waiting.append(job)",
        (_STUDIES + "test_retries_are_as_many_as_given",),
    ),
    Mutation(
        "a full disk is a traceback of the study",
        "cli/study.py",
        "    except OSError as error:\n        full",
        "    except ZeroDivisionError as error:\n        full",
        (_STUDIES + "test_a_full_disk_is_a_sentence",),
    ),
    Mutation(
        "a full disk of a worker has no name",
        _WORKER,
        "return FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else UNUSABLE",
        "return UNUSABLE",
        (_STUDIES + "test_a_full_disk_of_a_worker_fails_its_run_alone",),
    ),
]

# 6. Machine
MACHINE = [
    Mutation(
        "a full disk is an error of the machine",
        _ERRORS,
        "_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}",
        "_NO_SPACE = set()",
        (_COMMAND + "test_errors_end_with_a_sentence",),
    ),
    Mutation(
        "a folder that cannot be written is an error of the machine",
        _ERRORS,
        "_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}",
        "_NOT_WRITABLE = set()",
        (_COMMAND + "test_errors_end_with_a_sentence",),
    ),
    Mutation(
        "a dead process of a ParallelEnv has no name",
        _TRAINER,
        "            if dead is not None:\n",
        "            if False:\n",
        (_COMMAND + "test_a_dead_process_of_a_parallel_environment_is_named",),
    ),
    Mutation(
        "workers of a ParallelEnv end by a signal to the whole group",
        "envs/gym.py",
        "            signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        "            pass\n",
        ("envs/test_factory.py::TestWhatIsBuilt::test_parallel_processes",),
    ),
    Mutation(
        "the tables of killed processes stay",
        "envs/transforms.py",
        "                path.unlink(missing_ok=True)\n\n\ndef _is_alive",
        "                pass\n\n\ndef _is_alive",
        (
            "envs/test_transforms.py::TestSharing"
            "::test_file_of_a_killed_process_goes_with_the_next_table",
        ),
    ),
    Mutation(
        "an agent for other observations is not refused",
        _TRAINER,
        "    except (RuntimeError, KeyError, ValueError) as error:\n        batch",
        "    except ZeroDivisionError as error:\n        batch",
        ("training/test_any_environment.py::test_an_agent_for_other_observations_is_refused",),
    ),
    Mutation(
        "Ray's head is not watched",
        "training/collection/ray.py",
        "                misses += 1\n",
        "                misses = 0\n",
        ("training/test_collection_ray.py::test_a_head_that_is_gone_ends_the_run_with_a_sentence",),
    ),
    Mutation(
        "a call to a lost head waits for ever",
        "training/collection/ray.py",
        "                os._exit(1)",
        "                seconds = 0",
        ("training/test_collection_ray.py::test_a_call_that_cannot_be_woken_is_ended",),
    ),
]

# 7. Crafted files
CRAFTED = [
    Mutation(
        "an index may name a file outside its folder",
        _PERSISTENCE,
        "if name != Path(name).name or (directory / name).is_symlink():",
        "if (directory / name).is_symlink():",
        _CRAFTED,
    ),
    Mutation(
        "a link may lead out of the folder",
        _PERSISTENCE,
        "if name != Path(name).name or (directory / name).is_symlink():",
        "if name != Path(name).name:",
        (_DAMAGE + "test_a_link_out_of_the_directory_is_refused",),
    ),
    Mutation(
        "shapes and offsets may be negative",
        _PERSISTENCE,
        "any(type(n) is not int or n < 0 for n in numbers)",
        "False",
        _CRAFTED,
    ),
    Mutation(
        "a tensor may be larger than its file",
        _PERSISTENCE,
        "if size > held or offset + length > len(data):",
        "if False:",
        _CRAFTED,
    ),
    Mutation(
        "packed bytes may lie outside the file",
        _PERSISTENCE,
        "if size > held or offset + length > len(data):",
        "if size > held:",
        _CRAFTED,
    ),
    Mutation(
        "decompression is not bounded",
        _PERSISTENCE,
        "most = min(_CHUNK, size - filled + 1)",
        "most = _CHUNK",
        (_DAMAGE + "test_decompression_needs_no_more_memory_than_the_tensor",),
    ),
    Mutation(
        "a tree of any depth is followed",
        _PERSISTENCE,
        "except (KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:",
        "except (KeyError, TypeError, AttributeError) as error:",
        (_DAMAGE + "test_a_deep_tree_is_refused",),
    ),
    Mutation(
        "settings may read the machine's variables",
        _DIRECTORY,
        "    if resolver:\n",
        "    if False:\n",
        _SETTINGS,
    ),
    Mutation(
        "settings may have aliases",
        _DIRECTORY,
        "        if self.check_event(yaml.AliasEvent):\n",
        "        if False:\n",
        _SETTINGS,
    ),
    Mutation(
        "settings may have any size",
        _DIRECTORY,
        "    if path.stat().st_size > _LARGEST_SETTINGS:\n",
        "    if False:\n",
        _SETTINGS,
    ),
    Mutation(
        "a study's name may lead out of its folder",
        "studies/declaration.py",
        r'_FOLDER = re.compile(r"\w[\w .,+=()-]*")',
        r'_FOLDER = re.compile(r"[^\n\0]+")',
        (_STUDIES + "test_names_cannot_leave_the_folder",),
    ),
    Mutation(
        "the README of results shows tags of HTML",
        "studies/results.py",
        'return html.escape(" ".join(text.split()), quote=False).replace("|", "\\\\|")',
        'return " ".join(text.split()).replace("|", "\\\\|")',
        (_STUDIES + "test_the_readme_of_results_escapes_html",),
    ),
    Mutation(
        "a map of any size is built",
        "envs/grid/layouts.py",
        "    if height * width > LARGEST_MAP:\n",
        "    if False:\n",
        ("envs/test_layouts.py",),
    ),
    Mutation(
        "an archive of any size is unpacked",
        "analysis/run_files.py",
        '    if size > largest:\n        raise ValueError(f"its arrays',
        '    if False:\n        raise ValueError(f"its arrays',
        (_DAMAGE + "test_an_archive_of_absurd_size_is_refused",),
    ),
]

# 8. Reproducible
REPRODUCIBLE = [
    Mutation(
        "NumPy's generator is not seeded",
        _TRAINER,
        "        np.random.seed(self.config.seed % 2**32)\n",
        "",
        (_COMMAND + "test_the_seed_reaches_all_generators",),
    ),
    Mutation(
        "Python's generator is not seeded",
        _TRAINER,
        "        random.seed(self.config.seed)\n",
        "",
        (_COMMAND + "test_the_seed_reaches_all_generators",),
    ),
    Mutation(
        "a command does not seed Python's generator",
        _STATE,
        "    np.random.seed(seed % 2**32)\n    random.seed(seed)",
        "    np.random.seed(seed % 2**32)",
        (_COMMAND + "test_the_seed_reaches_all_generators",),
    ),
    Mutation(
        "other versions are not named",
        _DIRECTORY,
        "        if known != own:\n",
        "        if False:\n",
        (_RUN_DIRECTORY + "test_other_versions_are_named",),
    ),
]

RELIABILITY = [
    *NUMBERS,
    *CHECKPOINTS,
    *SEGMENTS,
    *LOG,
    *SIGNALS,
    *STUDIES,
    *MACHINE,
    *CRAFTED,
    *REPRODUCIBLE,
]
