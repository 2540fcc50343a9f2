"""Replay: single steps are stored; n-step transitions and frame stacks are made when sampling."""
