"""The mutations: each a small change of meaning, where it is made, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One place broken on purpose.

    Attributes:
        name (str): what becomes wrong.
        file (str): inside the package.
        old (str): what stands there, exactly once in the file.
        new (str): what is put in its place.
        tests (tuple of str): inside ``tests/``, files or ``file.py::test``, each as narrow as it can be.
        why_it_may_survive (str): for a mutation that changes nothing that can be seen.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why_it_may_survive: str = ""


_LAPLACIAN = ("objectives/test_laplacian.py::test_value_and_gradient_equal_the_double_loop",)
_ALLO = ("objectives/test_allo.py::test_value_and_gradient_equal_the_double_loop",)
_OPTION_DQN = ("objectives/test_option_dqn.py::test_equals_a_plain_reference",)
_OPTION_C51 = (
    "objectives/test_option_distributional_dqn.py::test_double_and_single_against_plain_loops",
)
_C51_ENDS = (
    "objectives/test_option_distributional_dqn.py::test_truncation_bootstraps_and_termination_does_not",
)
_NSTEP = ("data/test_nstep.py::test_table_of_two_streams",)
_SUM_TREE = ("data/test_sum_tree.py",)
_SHARES = ("modules/test_exploration.py::test_shares_of_exploration_options_and_random_actions",)
_ANY = "training/test_any_environment.py::"
_APPENDING = """\
        env = env.append_transform(InitTracker())
    for transform in transforms:
        # Not twice, if the same environment is trained in again.
        if (type(transform), transform.out_keys) not in there:
            # A new object, if the environment had no transforms.
            env = env.append_transform(transform.clone())
"""

OBJECTIVES = [
    Mutation(
        "every prefix weighs c_i instead of c_i - c_{i+1}",
        "objectives/laplacian.py",
        "prefix_weights = c - torch.cat([c[1:], c.new_zeros(1)])",
        "prefix_weights = c.clone()",
        _LAPLACIAN,
    ),
    Mutation(
        "a pair of dimensions weighs c_min instead of c_max",
        "objectives/laplacian.py",
        "c[torch.maximum(index[:, None], index)]",
        "c[torch.minimum(index[:, None], index)]",
        _LAPLACIAN,
    ),
    Mutation(
        "the U-statistic is divided by B instead of B - 1",
        "objectives/laplacian.py",
        "others = f.shape[0] - 1",
        "others = f.shape[0]",
        _LAPLACIAN,
    ),
    Mutation(
        "the pairs of a state with itself are left in the U-statistic",
        "objectives/laplacian.py",
        "return (all_pairs - self_pairs) / others",
        "return all_pairs / others",
        _LAPLACIAN,
    ),
    Mutation(
        "the constant of the orthogonality is counted twice",
        "objectives/laplacian.py",
        "(f.square() - 0.5) @",
        "(f.square() - 1.0) @",
        _LAPLACIAN,
    ),
    Mutation(
        "the two halves of the split estimator are one",
        "objectives/laplacian.py",
        "u, v = f.chunk(2)",
        "u = v = f.chunk(2)[0]",
        _LAPLACIAN,
    ),
    Mutation(
        "the smoothness has no factor of one half",
        "objectives/laplacian.py",
        "smoothness = 0.5 * (f - f_successor)",
        "smoothness = 1.0 * (f - f_successor)",
        _LAPLACIAN,
    ),
    Mutation(
        "the barrier has the other sign",
        "objectives/laplacian.py",
        "return smoothness + barrier * orthogonality, smoothness",
        "return smoothness - barrier * orthogonality, smoothness",
        _LAPLACIAN,
    ),
    Mutation(
        "the generalized Laplacian has equal coefficients",
        "objectives/laplacian.py",
        "[float(dimensions - i) for i in range(dimensions)]",
        "[float(dimensions) for i in range(dimensions)]",
        _LAPLACIAN,
    ),
    Mutation(
        "the automatic barrier takes twice the smoothness",
        "objectives/_representation.py",
        "change.mT @ change / (2 * size)",
        "change.mT @ change / size",
        (
            "objectives/test_barrier.py::test_the_estimate_is_the_largest_rayleigh_quotient_in_any_rotation",
        ),
    ),
    Mutation(
        "the automatic barrier does not rise for a collapsed dimension",
        "objectives/_representation.py",
        "largest = torch.where(self.collapsed.any(), _LARGEST_EIGENVALUE, largest)",
        "pass",
        ("objectives/test_barrier.py::test_a_collapsed_dimension_is_counted_named_and_recovers",),
    ),
    Mutation(
        "ALLO's duals step downward",
        "objectives/allo.py",
        "self.duals.add_(errors, alpha=self.dual_step_size)",
        "self.duals.add_(errors, alpha=-self.dual_step_size)",
        (
            "objectives/test_allo.py::test_duals_stay_lower_triangular_and_clamped",
            "objectives/test_allo.py::test_recovers_eigenvectors_and_eigenvalues",
        ),
    ),
    Mutation(
        "ALLO's eigenvalues have the other sign",
        "objectives/allo.py",
        "self.duals.diagonal() / -2",
        "self.duals.diagonal() / 2",
        ("objectives/test_allo.py::test_recovers_eigenvectors_and_eigenvalues",),
    ),
    Mutation(
        "ALLO has no stopped gradient",
        "objectives/allo.py",
        "return (f * (f.detach() @ matrix.mT)).sum(-1)",
        "return (f * (f @ matrix.mT)).sum(-1)",
        _ALLO,
    ),
    Mutation(
        "ALLO's duals are not clamped",
        "objectives/allo.py",
        "self.duals.clamp_(-self.max_dual, self.max_dual)",
        "pass",
        ("objectives/test_allo.py::test_duals_stay_lower_triangular_and_clamped",),
    ),
    Mutation(
        "masked states count in the representation's losses",
        "objectives/_representation.py",
        "rows, successor_rows = rows[valid], successor_rows[valid]",
        "pass",
        ("objectives/test_representation.py::test_masked_states_are_left_out",),
    ),
    Mutation(
        "the representation reads the state in the successor's place",
        "objectives/_representation.py",
        "successors[key] = self._read(tensordict, unravel_key((successor, key)))",
        "successors[key] = self._read(tensordict, key)",
        ("objectives/test_representation.py::test_nested_keys_and_successor", *_LAPLACIAN),
    ),
    Mutation(
        "OMM adds the smoothness to its operator",
        "objectives/omm.py",
        "operator = moments - change.mT @ change / 4",
        "operator = moments + change.mT @ change / 4",
        ("objectives/test_omm.py::test_value_equals_the_double_loop",),
    ),
    Mutation(
        "DIAYN's discriminator reads s instead of s'",
        "objectives/diayn.py",
        'tensordict, unravel_key((successor, key)), "say where it is',
        'tensordict, key, "say where it is',
        ("objectives/test_diayn.py",),
    ),
    Mutation(
        "CIC's loss has the other sign",
        "objectives/cic.py",
        "loss = (scores.logsumexp(-1) - positive)",
        "loss = (positive - scores.logsumexp(-1))",
        ("objectives/test_cic.py::test_loss_is_info_nce_over_the_steps_with_a_skill",),
    ),
    Mutation(
        "options left out of an update move by Adam's momentum",
        "_fast/steps.py",
        "            for option in options:\n",
        "            for option in range(count):\n",
        ("objectives/test_option_adam.py::test_options_left_out_do_not_move",),
    ),
    Mutation(
        "all options count one another's steps in Adam's bias correction",
        "_fast/steps.py",
        'tensors[4].append(state["step"][option])',
        'tensors[4].append(state["step"][0])',
        ("objectives/test_option_adam.py::test_each_option_learns_as_with_an_adam_of_its_own",),
    ),
    Mutation(
        "an option's next action is chosen by the target network",
        "objectives/option_dqn.py",
        "best = online_next.argmax(-1, keepdim=True)",
        "best = target_next.argmax(-1, keepdim=True)",
        _OPTION_DQN,
    ),
    Mutation(
        "options discount n steps by gamma instead of gamma^m",
        "objectives/option_dqn.py",
        "discount = discount ** steps.view(*reward.shape[:-1], 1)",
        "pass",
        _OPTION_DQN,
    ),
    Mutation(
        "options do not bootstrap after a truncation",
        "objectives/option_dqn.py",
        "terminated = next_td.get(keys.terminated, None)",
        "terminated = next_td.get(keys.done, None)",
        _OPTION_DQN,
    ),
    Mutation(
        "a gradient goes through the options' reward",
        "objectives/option_dqn.py",
        "return reward.detach()",
        "return reward",
        ("objectives/test_option_dqn.py::test_a_reward_with_gradient_is_detached",),
    ),
    Mutation(
        "every update trains the first options instead of drawn ones",
        "objectives/option_dqn.py",
        "options = torch.randperm(self.num_options)[: self.options_per_update]",
        "options = torch.arange(self.options_per_update)",
        ("objectives/test_option_dqn.py::test_options_per_update_trains_a_random_subset",),
    ),
    Mutation(
        "a distributional option bootstraps from its online network",
        "objectives/option_distributional_dqn.py",
        "taken_distribution(target_next, chosen)",
        "taken_distribution(online_next, chosen)",
        _OPTION_C51,
    ),
]

FAST = [
    Mutation(
        "C51's projection keeps the upper share below, too",
        "_fast/losses.py",
        "projected.scatter_add_(-1, index, probabilities - upper_share)",
        "projected.scatter_add_(-1, index, probabilities)",
        ("_fast/test_categorical.py",),
    ),
    Mutation(
        "the bootstrap value comes from the online network",
        "_fast/losses.py",
        "with torch.no_grad(), swapped(owner, target_parameters):",
        "with torch.no_grad(), swapped(owner, own_parameters):",
        ("_fast/test_double_dqn.py",),
    ),
    Mutation(
        "the main learner's next action is chosen by the target network",
        "_fast/losses.py",
        "target_next.gather(-1, online_next.argmax(-1, keepdim=True))",
        "target_next.gather(-1, target_next.argmax(-1, keepdim=True))",
        ("_fast/test_double_dqn.py",),
    ),
    Mutation(
        "C51 does not bootstrap after a truncation",
        "_fast/losses.py",
        "terminated = next_td.get(keys.terminated, None)",
        "terminated = next_td.get(keys.done, None)",
        _C51_ENDS,
    ),
    Mutation(
        "C51 bootstraps after a termination",
        "_fast/losses.py",
        "returns = reward + discount * ~terminated.view(*rows, 1) * support",
        "returns = reward + discount * support",
        _C51_ENDS,
    ),
    Mutation(
        "C51 discounts n steps by gamma instead of gamma^m",
        "_fast/losses.py",
        "discount = discount ** steps.view(*rows, 1)",
        "pass",
        ("objectives/test_option_distributional_dqn.py::test_the_main_loss_equals_torchrls",),
    ),
    Mutation(
        "soft targets move by 1 - tau",
        "_fast/steps.py",
        "torch._foreach_lerp_(gathered[2], gathered[3], 1 - self.eps)",
        "torch._foreach_lerp_(gathered[2], gathered[3], self.eps)",
        ("_fast/test_steps.py",),
    ),
]

MODULES = [
    Mutation(
        "running moments forget what lies between the means",
        "modules/bonus.py",
        "self.var += weight * (1 - weight) * delta.square()",
        "pass",
        ("modules/test_running.py",),
    ),
    Mutation(
        "RND's bonus is divided by a variance",
        "modules/bonus.py",
        "return error / self.errors.std",
        "return error / self.errors.var",
        ("modules/test_bonus.py",),
    ),
    Mutation(
        "mu and epsilon are swapped",
        "modules/exploration.py",
        "explores = (explore_draw < self.eps) & ~continues\n"
        "        starts = explores & (start_draw < self.option_prob)",
        "explores = (explore_draw < self.option_prob) & ~continues\n"
        "        starts = explores & (start_draw < self.eps)",
        _SHARES,
    ),
    Mutation(
        "exploring and starting an option are one draw",
        "modules/exploration.py",
        "starts = explores & (start_draw < self.option_prob)",
        "starts = explores & (explore_draw < self.option_prob)",
        _SHARES,
    ),
    Mutation(
        "an option continues in the next episode",
        "modules/exploration.py",
        "continues &= ~self._is_init(tensordict).view(option.shape)",
        "pass",
        (
            "modules/test_exploration.py::test_an_active_option_acts_until_it_ends_and_ends_with_its_episode",
        ),
    ),
    Mutation(
        "options last one step longer in the mean",
        "modules/exploration.py",
        "probability: Tensor | float = 1 / self.option_duration",
        "probability: Tensor | float = 1 / (self.option_duration + 1)",
        ("modules/test_exploration.py::test_option_lengths_are_geometric_with_mean_d",),
    ),
    Mutation(
        "epsilon falls from the first step on",
        "modules/exploration.py",
        "progress = (self.frames - self.annealing_start) / self.annealing_num_steps",
        "progress = self.frames / self.annealing_num_steps",
        ("modules/test_exploration.py::test_epsilon_falls_linearly_from_a_given_step_on",),
    ),
    Mutation(
        "deterministic exploration explores",
        "modules/exploration.py",
        "if exploration_type() not in (ExplorationType.RANDOM, None):",
        "if False:",
        ("modules/test_exploration.py::test_deterministic_exploration_is_the_greedy_main_learner",),
    ),
    Mutation(
        "value_termination compares shifted values with 0",
        "modules/exploration.py",
        "return best <= offset.gather(-1, option.clamp(min=0).unsqueeze(-1)).squeeze(-1)",
        "return best <= 0",
        ("modules/test_exploration.py::test_value_termination_ends_an_option_at_its_top",),
    ),
    Mutation(
        "an option's own epsilon is its complement",
        "modules/exploration.py",
        "randomly = torch.rand(option.shape, device=option.device) < eps",
        "randomly = torch.rand(option.shape, device=option.device) > eps",
        ("modules/test_exploration.py::test_option_eps_makes_some_actions_random",),
    ),
    Mutation(
        "masked actions are taken by options",
        "modules/exploration.py",
        "values = values.masked_fill(~mask, -torch.inf)",
        "pass",
        ("modules/test_exploration.py::test_masked_actions_are_never_taken",),
    ),
    Mutation(
        "ez-greedy's zeta has an exponent less",
        "modules/exploration.py",
        "** -zeta_exponent",
        "** (1 - zeta_exponent)",
        ("modules/test_ez_greedy.py::test_ez_greedy_durations_have_the_exact_law",),
    ),
    Mutation(
        "ez-greedy repeats an action once more",
        "modules/exploration.py",
        "self._draw_durations(option.shape) - 1, remaining",
        "self._draw_durations(option.shape), remaining",
        ("modules/test_ez_greedy.py::test_ez_greedy_lengths_follow_zeta_2",),
    ),
    Mutation(
        "images are centred by s alone",
        "modules/centring.py",
        "torch.cat([tensordict.get(key) for key in self.in_keys]).float()",
        "tensordict.get(self.in_keys[0]).float()",
        ("modules/test_centring.py::test_fit_takes_mean_image_and_one_deviation_of_both_states",),
    ),
    Mutation(
        "the centre follows every batch",
        "modules/centring.py",
        "if not self._known_fitted:",
        "if True:",
        ("modules/test_centring.py::test_only_the_first_batch_counts_also_after_loading",),
    ),
    Mutation(
        "an option is rewarded for going down its eigenfunction",
        "modules/rewards.py",
        "self._features(self._next(tensordict)) - self._features(tensordict)",
        "self._features(tensordict) - self._features(self._next(tensordict))",
        ("modules/test_rewards.py::test_telescoped_is_the_difference_of_eigenfunctions",),
    ),
    Mutation(
        "options follow the constant eigenfunction, too",
        "modules/rewards.py",
        "first = int(self.skip_first)",
        "first = 0",
        ("modules/test_rewards.py::test_telescoped_is_the_difference_of_eigenfunctions",),
    ),
    Mutation(
        "a potential reward of m steps is that of one",
        "modules/rewards.py",
        "kept = self.gamma if steps is None else self.gamma ** steps.view(*features.shape[:-1], 1)",
        "kept = self.gamma",
        (
            "modules/test_rewards.py::test_potential_is_the_telescoped_target_with_f_added_to_every_value",
        ),
    ),
    Mutation(
        "a potential reward keeps the value beyond a termination",
        "modules/rewards.py",
        "return features * (1 - (kept if terminated is None else kept * ~terminated))",
        "return features * (1 - kept)",
        (
            "modules/test_rewards.py::test_potential_is_the_telescoped_target_with_f_added_to_every_value",
        ),
    ),
    Mutation(
        "DIAYN's prior has the other sign",
        "modules/skill_rewards.py",
        "logits.log_softmax(-1) - log_prior",
        "logits.log_softmax(-1) + log_prior",
        ("modules/test_diayn_reward.py",),
    ),
    Mutation(
        "a particle is its own nearest neighbour",
        "modules/skill_rewards.py",
        ".fill_diagonal_(math.inf)",
        "",
        ("modules/test_cic_reward.py",),
    ),
    Mutation(
        "Rayleigh-Ritz takes twice the smoothness",
        "modules/rayleigh_ritz.py",
        "add_(change.mT @ change, alpha=added / (2 * size))",
        "add_(change.mT @ change, alpha=added / size)",
        ("modules/test_rayleigh_ritz.py::test_the_same_from_batches",),
    ),
    Mutation(
        "Ritz leaves the constant function where an early solution put it",
        "modules/rayleigh_ritz.py",
        "return apart and values[b] > self.reorder * max(values[a], 0.0)",
        "return False",
        (
            "modules/test_rayleigh_ritz.py::test_the_constant_comes_first_wherever_an_early_solution_put_it",
        ),
    ),
    Mutation(
        "Ritz exchanges functions whenever their eigenvalues cross",
        "modules/rayleigh_ritz.py",
        "return apart and values[b] > self.reorder * max(values[a], 0.0)",
        "return values[b] > values[a]",
        (
            "modules/test_rayleigh_ritz.py::test_functions_keep_their_places_when_eigenvalues_cross",
            "modules/test_rayleigh_ritz.py::test_identity_over_a_thousand_solutions_on_a_drifting_encoder",
        ),
    ),
    Mutation(
        "the mean advantage is left in the dueling network",
        "modules/distributional.py",
        "logits = value + advantage - advantage.mean(-1, keepdim=True)",
        "logits = value + advantage",
        ("modules/test_distributional.py::test_dueling_by_hand",),
    ),
]

DATA = [
    Mutation(
        "the first reward of n steps is discounted",
        "data/nstep.py",
        "(self._gamma ** np.arange(self._n_steps))",
        "(self._gamma ** np.arange(1, self._n_steps + 1))",
        _NSTEP,
    ),
    Mutation(
        "rewards beyond the end of an episode count",
        "data/nstep.py",
        "weight = torch.from_numpy(inside * self._discounts)",
        "weight = torch.from_numpy(np.ones_like(inside) * self._discounts)",
        _NSTEP,
    ),
    Mutation(
        "next and successor are mixed up",
        "data/nstep.py",
        "out[key], successor[key], following[key] = value[:3].unbind(0)",
        "out[key], following[key], successor[key] = value[:3].unbind(0)",
        ("data/test_nstep.py::test_against_lists_of_episodes",),
    ),
    Mutation(
        "a truncated step counts as terminated",
        "data/nstep.py",
        '"terminated": end[:, 1:2]',
        '"terminated": end[:, 0:1]',
        _NSTEP,
    ),
    Mutation(
        "the flags of n steps are those of the first",
        "data/nstep.py",
        'end = self.tensors["end"].index_select(0, last_step)',
        'end = self.tensors["end"].index_select(0, index)',
        _NSTEP,
    ),
    Mutation(
        "m is always n",
        "data/nstep.py",
        '"steps_to_next_obs": torch.from_numpy(count)',
        '"steps_to_next_obs": torch.full((size, 1), n)',
        _NSTEP,
    ),
    Mutation(
        "a user's key `later` is overwritten",
        "data/nstep.py",
        '    "later",\n',
        "",
        ("data/test_columns.py::test_a_sample_has_no_entry_that_could_be_overwritten",),
    ),
    Mutation(
        "a window reads beyond the newest row",
        "data/ring.py",
        "stop = self.final[rows[:, 1:]] | (ahead[1:] >= to_newest[:, None])",
        "stop = self.final[rows[:, 1:]].copy()",
        ("data/test_nstep.py::test_table_across_the_write_head", *_NSTEP),
    ),
    Mutation(
        "final rows that run over steps do not drop them",
        "data/ring.py",
        "dropped += run_over.sum(1)",
        "pass",
        ("data/test_ring.py",),
    ),
    Mutation(
        "steps whose older frames are overwritten can be drawn",
        "data/ring.py",
        "self.first[sel] = oldest + lost.sum(1)",
        "self.first[sel] = oldest",
        ("data/test_ring.py", "data/test_nstep.py::test_against_lists_of_episodes"),
    ),
    Mutation(
        "the first rank of a stream belongs to the one before",
        "data/ring.py",
        'self._cumulated.searchsorted(rank, side="right")',
        'self._cumulated.searchsorted(rank, side="left")',
        ("data/test_ring.py", "data/test_samplers.py"),
    ),
    Mutation(
        "there is no room for final observations",
        "data/factory.py",
        "num_streams * (2 * math.ceil(steps / num_streams)",
        "num_streams * (math.ceil(steps / num_streams)",
        ("data/test_capacity.py",),
    ),
    Mutation(
        "priorities have no exponent alpha",
        "data/samplers.py",
        "return base**self._alpha * (base > 0)",
        "return base * (base > 0)",
        ("data/test_samplers.py::test_frequencies_and_weights_against_a_naive_reference",),
    ),
    Mutation(
        "importance weights have the other exponent",
        "data/samplers.py",
        "weight = (weight / weight.min()) ** -self._beta",
        "weight = (weight / weight.min()) ** self._beta",
        ("data/test_samplers.py::test_frequencies_and_weights_against_a_naive_reference",),
    ),
    Mutation(
        "a barred row gets a priority",
        "data/samplers.py",
        "self._tree.set(row, self._weight(value) * ~self._barred[row])",
        "self._tree.set(row, self._weight(value))",
        ("data/test_samplers.py::test_barred_rows_stay_barred",),
    ),
    Mutation(
        "rounding leads past the last leaf of the sum tree",
        "data/samplers.py",
        "rest = np.minimum(rest, np.nextafter(running[:, -1:], 0.0))",
        "pass",
        _SUM_TREE,
    ),
    Mutation(
        "a mass on a border finds the leaf before it",
        "data/samplers.py",
        "child = (running > rest).argmax(1)",
        "child = (running >= rest).argmax(1)",
        _SUM_TREE,
    ),
    Mutation(
        "the last of duplicates counts in the sum tree",
        "data/samplers.py",
        "np.maximum.at(leaves, node, np.asarray(weight, dtype=np.float64))",
        "leaves[node] = np.asarray(weight, dtype=np.float64)",
        _SUM_TREE,
    ),
    Mutation(
        "only the first visit of a distinct observation is drawn",
        "data/distinct.py",
        "(rows := members[slot])[int(share * len(rows))]",
        "(rows := members[slot])[int(share * 0)]",
        ("data/test_distinct.py::test_frequencies_are_those_of_a_brute_force_count",),
    ),
    Mutation(
        "a termination without a flag of truncation truncates, too",
        "data/writer.py",
        "done & ~terminated if truncated is None",
        "done if truncated is None",
        ("data/test_writer.py::test_without_truncated_an_end_that_does_not_terminate_truncates",),
    ),
    Mutation(
        "the checksum of a file is ignored",
        "data/persistence.py",
        'if checksum != facts["crc32"]:',
        "if False:",
        ("data/test_persistence.py::test_damage_of_any_file_is_noticed",),
    ),
    Mutation(
        "n and gamma of a saved buffer are not restored",
        "data/replay_buffer.py",
        'self.n_steps, self.gamma = state_dict["n_steps"], state_dict["gamma"]',
        "pass",
        ("data/test_replay.py::test_settings_are_restored",),
    ),
    Mutation(
        "an episode that was cut goes on in the next",
        "data/writer.py",
        "ends[:, :-1] |= starts[:, 1:]",
        "pass",
        ("data/test_writer.py::test_a_start_within_a_batch_cuts_the_episode_before_it",),
    ),
    Mutation(
        "an overwritten row stays among its old observation's",
        "data/distinct.py",
        "        self._remove(row)\n",
        "",
        ("data/test_distinct.py::test_frequencies_are_those_of_a_brute_force_count",),
    ),
]

AGENTS = [
    Mutation(
        "rainbow_dceo's barrier is 1",
        "agents/rainbow.py",
        "    barrier: float = 0.5",
        "    barrier: float = 1.0",
        ("cli/test_config.py::test_rainbow_dceo_weighs_orthogonality_as_the_authors_do",),
    ),
    Mutation(
        "EigenReward has the main learner's gamma",
        "agents/builders.py",
        "gamma=option_gamma(config),",
        "gamma=config.gamma,",
        ("agents/test_agents.py::test_the_options_rewards_and_their_loss_have_one_discount",),
    ),
    Mutation(
        "the main loss has TorchRL's default gamma",
        "agents/builders.py",
        "loss.make_value_estimator(gamma=config.gamma)",
        "loss.make_value_estimator()",
        (_ANY + "test_the_main_loss_discounts_by_the_agents_gamma",),
    ),
    Mutation(
        "Rainbow's main loss has a gamma of its own",
        "agents/builders.py",
        "return actor, CategoricalDQNLoss(actor, gamma=gamma)",
        "return actor, CategoricalDQNLoss(actor, gamma=0.99)",
        (_ANY + "test_rainbows_main_loss_discounts_by_the_agents_gamma",),
    ),
    Mutation(
        "a table steps by twice its step size",
        "agents/builders.py",
        '"lr": config.table_step_size / 2',
        '"lr": config.table_step_size',
        ("agents/test_tabular_learner.py::test_an_update_is_q_learning_on_each_transition",),
    ),
    Mutation(
        "every objective learns in every phase",
        "agents/agent.py",
        "if phase.objectives is None or name in phase.objectives",
        "if True",
        ("agents/test_agents.py::test_each_phase_moves_what_it_names",),
    ),
    Mutation(
        "objectives that average get prioritized rows",
        "agents/agent.py",
        "own = batch.get(UNIFORM, batch) if self.replay.uniform and objective.uniform else batch",
        "own = batch",
        (
            "agents/test_rainbow.py::"
            "test_objectives_that_average_get_uniform_rows_and_the_others_prioritized_ones",
        ),
    ),
    Mutation(
        "the optimizer is not told which options were trained",
        "agents/agent.py",
        "self.optimizer.step(trained=[rows for loss in losses for rows in loss.trained_rows()])",
        "self.optimizer.step()",
        ("agents/test_optimizer.py::test_options_left_out_of_an_update_do_not_move",),
    ),
    Mutation(
        "value_termination is taken with values that are shifted",
        "agents/agent.py",
        "and explorer.termination is value_termination",
        "and False",
        ("agents/test_optimizer.py::test_value_termination_of_shifted_values_is_refused",),
    ),
    Mutation(
        "priorities stay as they were",
        "agents/agent.py",
        "replay.update_tensordict_priority(batch)",
        "pass",
        ("agents/test_rainbow.py::test_priorities_become_the_errors_of_the_last_update",),
    ),
    Mutation(
        "ALLO's duals never step",
        "agents/dceo.py",
        "after_update=allo.dual_step",
        "after_update=None",
        ("agents/test_declarations.py",),
    ),
    Mutation(
        "epsilon falls during discovery",
        "agents/option_agent.py",
        "make_explorer(env, config, num_options, (discovery_frames or 0) + config.eps_start)",
        "make_explorer(env, config, num_options, config.eps_start)",
        ("agents/test_dceo.py::test_epsilon_falls_after_discovery",),
    ),
    Mutation(
        "RND's bonus is that of s",
        "agents/bonuses.py",
        'observation_key=("next", key),',
        "observation_key=key,",
        ("agents/test_baselines.py::test_the_bonus_of_rnd_is_that_of_the_next_state",),
    ),
    Mutation(
        "RND's predictor learns at s",
        "agents/bonuses.py",
        'loss.set_keys(observation=("next", key))',
        "loss.set_keys(observation=key)",
        ("agents/test_baselines.py::test_the_predictor_of_rnd_learns_at_the_next_state",),
    ),
    Mutation(
        "the count bonus is that of s",
        "agents/bonuses.py",
        'state_key=("next", counts.state_key)',
        "state_key=counts.state_key",
        ("agents/test_baselines.py::test_counts_adds_the_bonus_of_the_environments_counts_of_now",),
    ),
    Mutation(
        "the replay discounts by another gamma than the loss",
        "agents/builders.py",
        "            gamma=config.gamma,\n            batch_size=config.batch_size,",
        "            batch_size=config.batch_size,",
        (_ANY + "test_rainbows_main_loss_discounts_by_the_agents_gamma",),
    ),
    Mutation(
        "alpha and beta are swapped",
        "agents/builders.py",
        "alpha=config.priority_alpha,\n            beta=config.priority_beta,",
        "alpha=config.priority_beta,\n            beta=config.priority_alpha,",
        ("agents/test_rainbow.py::test_the_exponents_of_priorities_and_weights_are_the_agents",),
    ),
    Mutation(
        "the main learner's Adam has the others' epsilon",
        "agents/builders.py",
        'eps = config.main_adam_eps if name == "main" else config.adam_eps',
        "eps = config.adam_eps",
        (
            "agents/test_optimizer.py::"
            "test_gradients_of_almost_nothing_move_the_main_learner_by_almost_nothing",
        ),
    ),
    Mutation(
        "eigenrewards of single steps are those of n",
        "agents/builders.py",
        "        successor=config.option_successor,\n        reuse_representation=True,",
        '        successor="next",\n        reuse_representation=True,',
        ("agents/test_dceo.py::test_options_climb_from_one_step_to_the_next_whatever_the_pairs",),
    ),
    Mutation(
        "targets of frozen losses go on moving",
        "agents/agent.py",
        "if any(target.loss_module is objective.module for _, objective in learning):",
        "if True:",
        ("agents/test_agents.py::test_frozen_options_stay_where_they_were",),
    ),
    Mutation(
        "the updaters of targets are not restored",
        "agents/agent.py",
        "target.load_state_dict(saved)",
        "pass",
        ("agents/test_agents.py::test_the_updates_since_a_target_moved_are_saved",),
    ),
]

ENVS = [
    Mutation(
        "the deep count bonus has no square root",
        "envs/transforms.py",
        "return counts.clamp(min=1).rsqrt()",
        "return (1 / counts.clamp(min=1))",
        ("agents/test_baselines.py::test_counts_adds_the_bonus_of_the_environments_counts_of_now",),
    ),
    Mutation(
        "actions are noisy at twice the probability",
        "envs/transforms.py",
        "torch.where(u < self.prob, random, action)",
        "torch.where(u < 2 * self.prob, random, action)",
        ("envs/test_transforms.py::TestActionNoise::test_frequency_and_uniform_choice",),
    ),
    Mutation(
        "tables slip at twice the probability",
        "envs/table_env.py",
        "keep = u >= self.probability",
        "keep = u >= 2 * self.probability",
        ("envs/test_slip.py::test_overwrites_as_often_as_told_by_every_action_alike",),
    ),
]

TRAINING = [
    Mutation(
        "without RewardSum an episode's return is 1",
        "training/logging/metrics.py",
        "returns = self._returns() if sums is None else sums[done]",
        "returns = (done.double() if sums is None else sums)[done]",
        (_ANY + "test_returns_are_summed_across_batches_and_rows",),
    ),
    Mutation(
        "an environment of one transform has no chain",
        "training/checkpoint/run_directory.py",
        "yield from chain.transforms if isinstance(chain, Compose) else (chain,)",
        "yield from chain.transforms",
        (_ANY + "test_an_environment_with_one_transform_or_none",),
    ),
    Mutation(
        "a bare environment loses the primer",
        "training/collection/workers.py",
        _APPENDING,
        _APPENDING.replace("env = env.append", "env.append"),
        (_ANY + "test_a_bare_environment_gets_the_primer",),
    ),
    Mutation(
        "a whole run's replay has no room for final observations",
        "training/trainer.py",
        "return rows_for(self.config.total_frames + 1000, num_streams=streams, frame_stack=16)",
        "return self.config.total_frames + 1000",
        (
            "training/test_replay_settings.py::test_without_a_capacity_there_is_room_for_the_whole_run",
        ),
    ),
    Mutation(
        "a first batch larger than learning_starts is learned from at once",
        "training/trainer.py",
        "for _ in range(self._updates_due() - updates_before if len(self.replay) else 0):",
        "for _ in range(self._updates_due() - updates_before):",
        (_ANY + "test_more_environments_than_learning_starts",),
    ),
    Mutation(
        "the replay keeps discovery's steps",
        "training/trainer.py",
        "self.replay.empty()",
        "pass",
        (_ANY + "test_the_replay_is_emptied_between_the_phases",),
    ),
    Mutation(
        "evaluation explores",
        "training/evaluation.py",
        "with set_exploration_type(ExplorationType.DETERMINISTIC):",
        "with set_exploration_type(ExplorationType.RANDOM):",
        (_ANY + "test_evaluation_is_greedy",),
    ),
    Mutation(
        "evaluation has half of its random actions",
        "training/evaluation.py",
        "randomly = torch.rand(action.shape, generator=generator) < eps",
        "randomly = torch.rand(action.shape, generator=generator) < eps / 2",
        ("training/test_evaluation.py::test_the_share_of_random_actions",),
    ),
    Mutation(
        "an evaluation counts the episodes after the first",
        "training/evaluation.py",
        "total = torch.where(running, so_far.reshape(env.batch_size), total)",
        "total = so_far.reshape(env.batch_size)",
        ("training/test_evaluation.py",),
    ),
    Mutation(
        "counters are not restored",
        "training/checkpoint/state.py",
        'self.counters = Counters(**state["counters"])',
        'self.counters = Counters(frames=state["counters"]["frames"])',
        ("training/test_switch.py::test_resumes_across_the_switch_from_each_checkpoint",),
    ),
    Mutation(
        "torch's generator is not restored",
        "training/checkpoint/state.py",
        'torch.set_rng_state(state["torch"])',
        "pass",
        ("training/test_run_state.py::test_generators_go_on_after_saving",),
    ),
    Mutation(
        "another configuration may resume",
        "training/checkpoint/run_directory.py",
        "if difference:\n            raise RunRefused(",
        "if False:\n            raise RunRefused(",
        ("training/test_run_directory.py::test_another_configuration_is_refused",),
    ),
    Mutation(
        "the oldest checkpoint is loaded first",
        "training/checkpoint/__init__.py",
        "for folder in reversed(self._folders()):",
        "for folder in self._folders():",
        ("training/test_checkpoint.py",),
    ),
    Mutation(
        "the worst evaluation is kept as the best",
        "training/trainer.py",
        "evaluated > self.best_return",
        "evaluated < self.best_return",
        ("training/test_finite.py::test_the_best_evaluated_checkpoint_is_kept",),
    ),
    Mutation(
        "learning_starts counts from the start of the run, not of the phase",
        "training/trainer.py",
        "max(0, self.counters.phase_frames - self.config.learning_starts)",
        "max(0, self.counters.frames - self.config.learning_starts)",
        (_ANY + "test_the_replay_is_emptied_between_the_phases",),
    ),
]

TABULAR = [
    Mutation(
        "Q-learning bootstraps past a termination",
        "tabular/q_learning.py",
        ".masked_fill(terminated.view(-1), 0.0)",
        "",
        ("tabular/test_q_learning.py::test_no_value_comes_from_beyond_a_terminal_step",),
    ),
    Mutation(
        "ties are broken by the first action",
        "tabular/q_learning.py",
        "return torch.rand(values.shape, device=values.device).masked_fill_(~best, -1.0).argmax(-1)",
        "return best.int().argmax(-1)",
        ("tabular/test_q_learning.py::test_ties_are_broken_uniformly",),
    ),
    Mutation(
        "the graph has its edges in one direction",
        "tabular/graph.py",
        "codes = torch.cat([pairs, pairs.flip(0)], 1)\n        unique = (codes",
        "codes = pairs\n        unique = (codes",
        ("tabular/test_graph.py",),
    ),
    Mutation(
        "the eigenvectors have another norm",
        "tabular/graph.py",
        "found_vectors[:, 1:] * size**0.5",
        "found_vectors[:, 1:] * size",
        ("tabular/test_spectrum.py",),
    ),
    Mutation(
        "tabular options are solved with gamma squared",
        "tabular/ceo.py",
        "best = (reward + gamma * expected(values)).amax(1).clamp_(min=0)",
        "best = (reward + gamma**2 * expected(values)).amax(1).clamp_(min=0)",
        ("tabular/test_option_solver.py::test_equals_value_iteration_over_dictionaries",),
    ),
    Mutation(
        "a tabular option may not end where all its values are negative",
        "tabular/ceo.py",
        "best = (reward + gamma * expected(values)).amax(1).clamp_(min=0)",
        "best = (reward + gamma * expected(values)).amax(1)",
        ("tabular/test_option_solver.py::test_equals_value_iteration_over_dictionaries",),
    ),
    Mutation(
        "rare options lead to what was visited most",
        "tabular/ceo.py",
        "flip = mean > 0",
        "flip = mean < 0",
        ("tabular/test_rod_cycle.py::test_rare_options_lead_away_from_what_was_visited_most",),
    ),
    Mutation(
        "options are not backed up within an episode",
        "tabular/ceo.py",
        'self._back_up(tensordict.get("state_id"), tensordict.get("action"))',
        "pass",
        (
            "tabular/test_rod_cycle.py::test_a_move_that_keeps_failing_loses_its_value_within_the_episode",
        ),
    ),
    Mutation(
        "the tabular count bonus has no square root",
        "tabular/run.py",
        "visits.rsqrt()",
        "visits.reciprocal()",
        ("tabular/test_run.py::test_the_count_bonus_is_beta_over_root_n_of_the_next_state",),
    ),
    Mutation(
        "a two-phase run continues discovering",
        "tabular/run.py",
        'discovers = discovery or self.method == "ceo"',
        "discovers = self.cycle is not None",
        ("tabular/test_run.py::test_two_phase_options_stay_as_discovered",),
    ),
    Mutation(
        "the median seed is the lower of two",
        "tabular/comparison.py",
        "statistics.median(",
        "statistics.median_low(",
        ("studies/experiments/test_tabular.py::test_the_median_is_that_of_two_seeds",),
    ),
    Mutation(
        "tabular discovery explores by the learner's epsilon",
        "tabular/run.py",
        "explorer.eps = torch.ones_like(self.eps)",
        "pass",
        ("tabular/test_run.py::test_two_phases",),
    ),
    Mutation(
        "a tabular evaluation counts the episodes after the first",
        "tabular/q_learning.py",
        'total += torch.where(running, nexts.get("reward").squeeze(-1), 0.0)',
        'total += nexts.get("reward").squeeze(-1)',
        ("tabular/test_measures.py::test_greedy_evaluation_is_of_one_episode_each",),
    ),
]

_TABLES = ("analysis/test_diagnosis.py::test_the_tables_are_those_of_a_slow_model",)

ANALYSIS = [
    Mutation(
        "solved options continue past a goal",
        "analysis/spectra/options.py",
        "paid = (f + gamma * (1 - ends) * best)[next_state]",
        "paid = (f + gamma * best)[next_state]",
        _TABLES,
    ),
    Mutation(
        "the diagnosis knows moves out of the visited graph",
        "analysis/diagnosis.py",
        "within = torch.where(inside[moves], moves, own)",
        "within = moves",
        _TABLES,
    ),
    Mutation(
        "the visited graph is the whole one",
        "analysis/diagnosis.py",
        '"visited": exact(seen & kept,',
        '"visited": exact(kept,',
        _TABLES,
    ),
    Mutation(
        "learned values keep the potential's offset",
        "analysis/diagnosis.py",
        "OptionTables(option_values.double() - offset, known)",
        "OptionTables(option_values.double(), known)",
        ("analysis/test_diagnosis.py::test_learned_values_are_what_an_action_gains",),
    ),
    Mutation(
        "an option outside its graph takes the first action",
        "analysis/diagnosis.py",
        "guess = torch.rand_like(shown)",
        "guess = torch.zeros_like(shown)",
        ("analysis/test_diagnosis.py::test_an_unknown_state_is_left_by_a_random_walk",),
    ),
    Mutation(
        "the diagnosis explores by the agent's epsilon",
        "analysis/diagnosis.py",
        "explorer.eps.fill_(1.0)",
        "pass",
        ("analysis/test_diagnosis.py::test_exploration_is_that_of_a_slow_model",),
    ),
]

MUTATIONS = [*OBJECTIVES, *FAST, *MODULES, *DATA, *AGENTS, *ENVS, *TRAINING, *TABULAR, *ANALYSIS]
