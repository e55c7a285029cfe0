"""Where prompts come from: read (`sources`), mapped and templated (`prompts`), frozen (`frozen`), ordered (`order`)."""
