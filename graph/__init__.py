"""The LangGraph machine: state, context, nodes and builder."""
