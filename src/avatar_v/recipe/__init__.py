"""The run command: recipe files, their keys and errors, the folder of a run, its last words."""
