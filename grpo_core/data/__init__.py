"""Where prompts come from: read (`sources`), mapped, templated and ordered (`prompts`), frozen (`frozen`); all in `prepare`."""
