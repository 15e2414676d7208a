"""One file a verb of the command line."""

COMMANDS = {
    "blocks": "arch_search.commands.blocks:blocks",
    "data": "arch_search.commands.data:data",
    "plan": "arch_search.commands.plan:plan",
    "submit": "arch_search.commands.submit:submit",
    "status": "arch_search.commands.control:status",
    "logs": "arch_search.commands.logs:logs",
    "stop": "arch_search.commands.control:stop",
    "resume": "arch_search.commands.control:resume",
    "compare": "arch_search.commands.compare:compare",
    "study": "arch_search.commands.study:study",
    "evaluate": "arch_search.commands.evaluate:evaluate",
    "generate": "arch_search.commands.generate:generate",
    "results": "arch_search.commands.results:results",
    "mad": "arch_search.commands.mad:mad",
    "import": "arch_search.commands.import_model:import_model",
    "rebuild": "arch_search.commands.rebuild:rebuild",
    "bench": "arch_search.commands.bench:bench",
    "doctor": "arch_search.commands.doctor:doctor",
}
"""Our own commands in the order in which a person needs them, by import path."""
