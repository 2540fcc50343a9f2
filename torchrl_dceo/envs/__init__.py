"""The worlds of the paper: torch-native grids, the cube and MiniGrid object worlds."""
