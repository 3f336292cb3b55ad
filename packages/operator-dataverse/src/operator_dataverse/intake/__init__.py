"""How rows of the task table become tickets, stay ours, and change with what people do to them."""
